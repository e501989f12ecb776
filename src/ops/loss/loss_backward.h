// Cross-entropy and its gradient in one pass over the logits, which it overwrites: the LM head is
// worked off in chunks of rows, so that all logits never exist at once.
#pragma once

#include <cstdint>
#include <optional>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// loss[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]]
// logits[t, v] = scale * (softmax(logits[t])[v] - [v == targets[t]])
// f32 [tokens, vocab]; a target < 0 does not count: loss 0, gradient 0. A row with a NaN or an
// infinity gives NaN in both.
void cross_entropy_backward(const Context& ctx, float* loss, Tensor logits,
                            const std::int32_t* targets, float scale);
// The losses alone, with the same bits; the logits stay.
void cross_entropy_losses(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets);

// Of a model that fills in tokens: a token's loss counts `weights[t]` times, in `loss` and in the
// gradient, and the token that stands for an unknown one has a logit of -infinity: no probability,
// and gradient 0. `mask` is no target, and lies in the vocabulary. The logits stay where there is
// no scale.
struct MaskedLoss {
    const float* weights = nullptr;  // [tokens]
    std::int32_t mask = -1;
};
void masked_cross_entropy(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets, const MaskedLoss& of,
                          std::optional<float> scale);

}  // namespace mr::ops
