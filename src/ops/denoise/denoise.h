// Filling in unknown tokens: what a model says of a place whose token is unknown (guess), and which
// of a block's places a pass settles (choose). Plain numbers, so that a kernel can do the same.
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
    sequential,  // the first n of the schedule, from left to right
    fixed,       // the n with the highest confidence ("static" on the command line)
    dynamic,     // all whose confidence is above the threshold, and no fewer than n
    entropy,     // by rising entropy, while their sum stays within a bound; at least one
};
const char* remask_name(Remask remask);
std::optional<Remask> remask_of(std::string_view name);
inline constexpr const char* kRemaskNames = "sequential, static, dynamic, entropy";

struct DenoiseParams {
    Remask remask = Remask::dynamic;
    std::int32_t steps = 0;       // passes that a block has; 0: as many as it has places
    float threshold = 0.9f;       // of dynamic
    float entropy_bound = 0.35f;  // of entropy, in nats
    // Confidence is the probability of the drawn token among the candidates that were left (SDAR's
    // published rule). Then the order depends on the draws, and a text has no likelihood that can
    // be computed. False: it is the largest probability at temperature 1 without filters.
    bool drawn = false;

    bool operator==(const DenoiseParams&) const = default;
};
// Throws Error (usage) for numbers out of range; `block`: places of a block.
void check_denoise_params(const DenoiseParams& params, std::int64_t block);

// What a row of logits says of one place.
struct Guess {
    std::int32_t id = -1;  // the token that was drawn, or the true one where that is known
    float confidence = 0;  // by DenoiseParams::drawn
    // Of the whole distribution at temperature 1 without filters, in nats; 0 but for
    // Remask::entropy.
    float entropy = 0;
    float logprob = 0;  // of `id`, in that distribution
};

// Whether a filter may take something away from a draw (`truth` < 0) over so many tokens. Then it
// is that of sample() without a penalty. Otherwise it has two levels (tile_draw.h), or is the most
// probable token at temperature 0. Both are keyed by (seed, position, step): a draw that was not
// settled is not repeated by the next pass.
inline bool draw_is_filtered(const SampleParams& sampling, std::int64_t vocab, std::int32_t truth) {
    const bool best = sampling.top_k > 0 && sampling.top_k < vocab;
    return truth < 0 && sampling.temperature > 0 &&
           (best || sampling.top_p < 1 || sampling.min_p > 0);
}

// logits f32 [vocab]; the token `mask` has no probability: its logit becomes minus infinity.
// `truth`: the token that stands there, and nothing is drawn; -1: it is unknown. Throws what
// sample() throws. Scratch: sample_scratch_bytes().
Guess guess(const Context& ctx, Tensor logits, const SampleParams& sampling,
            const DenoiseParams& how, std::int32_t mask, std::uint64_t position, std::uint64_t step,
            std::int32_t truth = -1);

// The same, but rows without a token are no error: their guess has one of these ids.
enum GuessFault : std::int32_t {
    kGuessNone = -1,  // every logit is minus infinity
    kGuessNan = -2,   // a logit is not a number
};
Guess guess_or_fault(const Context& ctx, Tensor logits, const SampleParams& sampling,
                     const DenoiseParams& how, std::int32_t mask, std::uint64_t position,
                     std::uint64_t step, std::int32_t truth = -1);
void check_guess(const Guess& guess);  // throws what guess() throws for such a row

// Places that pass number `pass` of a block settles at least: block / steps, and one more in the
// first block % steps passes. 0 steps: one.
std::int32_t scheduled(std::int64_t block, std::int32_t steps, std::int64_t pass);

// settled[i] = 1 where a pass settles guesses[i]; guesses are those of the unknown places, in the
// order of their positions. `n`: scheduled(). Ties go to the earlier position. Returns how many.
std::int32_t choose(const DenoiseParams& params, std::span<const Guess> guesses, std::int32_t n,
                    std::span<std::uint8_t> settled);

}  // namespace mr::ops
