// Cross-entropy and its gradient in one pass over the logits, which it overwrites: the LM head is
// processed in chunks of rows, so that all logits never exist at once.
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
// Only the losses, with the same bits; the logits are unchanged.
void cross_entropy_losses(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets);

// For diffusion models: a token's loss is multiplied by `weights[t]`,
// in `loss` and in the gradient, and the mask token has a logit of
// -infinity: no probability, and gradient 0. `mask` must be in the
// vocabulary and no target. Without a scale the logits are unchanged.
struct MaskedLoss {
    const float* weights = nullptr;  // [tokens]
    std::int32_t mask = -1;
};
void masked_cross_entropy(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets, const MaskedLoss& of,
                          std::optional<float> scale);

}  // namespace mr::ops
