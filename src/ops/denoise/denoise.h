// Filling in unknown tokens: a model's guess for a place whose token is unknown (guess), and which
// of a block's places a pass settles (choose). Plain data, so that a kernel can do the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/sample/sample.h"

namespace mr::ops {

enum class Remask : std::uint8_t {
    sequential,  // the first n, from left to right
    fixed,       // the n with the highest confidence ("static" on the command line)
    dynamic,     // all with a confidence above the threshold, but at least n
    entropy,     // by rising entropy, while the sum stays within a bound; at least one
};
const char* remask_name(Remask remask);
std::optional<Remask> remask_of(std::string_view name);
inline constexpr const char* kRemaskNames = "sequential, static, dynamic, entropy";

struct DenoiseParams {
    Remask remask = Remask::dynamic;
    std::int32_t steps = 0;       // passes per block; 0: as many as it has places
    float threshold = 0.9f;       // for dynamic
    float entropy_bound = 0.35f;  // for entropy, in nats
    // Confidence is the probability of the drawn token among the remaining candidates (SDAR's
    // published rule). Then the order depends on the draws, and the likelihood of a text cannot be
    // computed. False: confidence is the largest probability at temperature 1 without filters.
    bool drawn = false;

    bool operator==(const DenoiseParams&) const = default;
};
// Throws Error (usage) for numbers out of range; `block`: places of a block.
void check_denoise_params(const DenoiseParams& params, std::int64_t block);

// The guess for one place, from a row of logits.
struct Guess {
    std::int32_t id = -1;  // the drawn token, or the true one if it is known
    float confidence = 0;  // as DenoiseParams::drawn says
    // Of the whole distribution at temperature 1 without filters, in nats; 0 unless
    // Remask::entropy.
    float entropy = 0;
    float logprob = 0;  // of `id`, in the same distribution
};

// Whether a filter may remove tokens from a draw (`truth` < 0) over this many tokens. If so, the
// draw is that of sample() without a penalty. Otherwise it has two levels (tile_draw.h), or is the
// most probable token at temperature 0. Both are keyed by (seed, position, step), so the next pass
// does not repeat a draw that was not settled.
inline bool draw_is_filtered(const SampleParams& sampling, std::int64_t vocab, std::int32_t truth) {
    const bool best = sampling.top_k > 0 && sampling.top_k < vocab;
    return truth < 0 && sampling.temperature > 0 &&
           (best || sampling.top_p < 1 || sampling.min_p > 0);
}

// logits f32 [vocab]; the token `mask` gets no probability: its logit becomes -infinity. `truth`:
// the known token of the place, then nothing is drawn; -1: it is unknown. Throws what sample()
// throws. Scratch: sample_scratch_bytes().
Guess guess(const Context& ctx, Tensor logits, const SampleParams& sampling,
            const DenoiseParams& how, std::int32_t mask, std::uint64_t position, std::uint64_t step,
            std::int32_t truth = -1);

// The same, but rows without a possible token are no error: their guess has one of these ids.
enum GuessFault : std::int32_t {
    kGuessNone = -1,  // every logit is -infinity
    kGuessNan = -2,   // a logit is not a number
};
Guess guess_or_fault(const Context& ctx, Tensor logits, const SampleParams& sampling,
                     const DenoiseParams& how, std::int32_t mask, std::uint64_t position,
                     std::uint64_t step, std::int32_t truth = -1);
void check_guess(const Guess& guess);  // throws what guess() throws for such a row

// The least number of places that pass `pass` of a block settles: block / steps, and one more in
// the first block % steps passes. 0 steps: one.
std::int32_t scheduled(std::int64_t block, std::int32_t steps, std::int64_t pass);

// Sets settled[i] = 1 if a pass settles guesses[i]; guesses are those of the unknown places, in
// position order. `n`: scheduled(). Ties go to the earlier position. Returns their number.
std::int32_t choose(const DenoiseParams& params, std::span<const Guess> guesses, std::int32_t n,
                    std::span<std::uint8_t> settled);

}  // namespace mr::ops
