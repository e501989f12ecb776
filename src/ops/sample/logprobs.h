// The log-probability of a drawn token, and the most probable alternatives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mr::ops {

inline constexpr int kMostLogprobs = 20;

struct TokenLogprob {
    std::int32_t id = 0;
    double logprob = 0;  // in nats
};
// For one drawn token. Both are of the model's own distribution: the softmax of its logits, before
// temperature, penalties and truncation.
struct DrawnLogprobs {
    double logprob = 0;
    std::vector<TokenLogprob> top;  // the most probable tokens, by falling probability, ties by id
};

// `logits`: [vocab], on the host. Impossible tokens (-inf) are never among the top ones.
DrawnLogprobs logprobs_of(std::span<const float> logits, std::int32_t drawn, int top);

}  // namespace mr::ops
