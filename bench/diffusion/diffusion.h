// The cost of a denoising pass, stage by stage, and the worth of the sampler, the number of passes
// and the strategy: the rungs of `millrace bench diffusion`. Two of the samplers exist only here,
// because the engine does not use them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "decode/diffusion.h"
#include "model/engine.h"

namespace mr::diffusion {

enum class Sampler {
    host,    // all logits are copied to the host, where one thread guesses
    sorted,  // every row is sorted on the GPU, as in the first GPU samplers
    engine,  // Engine::submit() with places
    block,   // Engine::fill_block(): the host only sees filled blocks
};
const char* sampler_name(Sampler sampler);

// Sorts whole rows, then filters and draws in the order of ops::sample(), even if nothing is
// filtered.
class SortedRows {
  public:
    virtual ~SortedRows() = default;
    virtual void guess(Tensor logits, std::span<const model::Place> places,
                       std::span<ops::Guess> out) = 0;
    // Null in a build without CUDA.
    static std::unique_ptr<SortedRows> make(const Context& ctx, std::int64_t most_rows,
                                            std::int64_t vocab, std::int32_t mask);
};

struct Rung {
    std::string name;
    Sampler sampler = Sampler::engine;
    decode::DiffusionOptions options;
};

// For one text. Times in seconds, bytes by the contracts of the operations.
struct Measured {
    std::int64_t tokens = 0, passes = 0;
    double seconds = 0;  // from the first pass over a block to the last token, without stage timing
    // The same text again, pass by pass, with every stage timed: forward without the head, head,
    // sampling, selection (which reads the guesses), and the copies between host and device, each
    // alone.
    double forward = 0, head = 0, sampling = 0, selection = 0, copies = 0;
    // Sampler::block: time of the forward of all passes alone (Engine::time_forward()).
    double forward_alone = 0;
    std::uint64_t forward_bytes = 0, head_bytes = 0, sampling_bytes = 0, selection_bytes = 0;
    std::uint64_t to_device = 0, to_host = 0;  // copies of the run that is timed as a whole
    std::vector<std::int32_t> ids;
    bool alone = false;  // Sampler::block: the engine took the text; false: as Sampler::engine

    double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
    double tokens_per_pass() const {
        return static_cast<double>(tokens) / static_cast<double>(passes);
    }
};

// The best of `reps` runs after a warm-up. The prompt is computed before the clock
// starts.
Measured measure(model::Engine& engine, SortedRows* sorted, const Rung& rung,
                 const ops::SampleParams& sampling, std::span<const std::int32_t> prompt,
                 std::int64_t tokens, int reps);

}  // namespace mr::diffusion
