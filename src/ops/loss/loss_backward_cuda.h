// Cross-entropy and its gradient on the GPU, in one pass over the logits, which it overwrites.
#pragma once

#include <cstdint>
#include <optional>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/loss/loss_backward.h"

namespace mr::cuda {

// loss[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]]
// logits[t, v] = scale * (softmax(logits[t])[v] - [v == targets[t]]), if `gradient`
// logits bf16 [rows, at least vocab]: columns from `vocab` on are ignored, and their gradient is 0,
// so that rows can be padded to a size that suits the products. loss f32 and targets [rows] in
// device memory. A target < 0 does not count: loss 0, gradient 0. A row with a NaN or an infinity,
// or with a target >= vocab, gives NaN in both. A row's bits depend on that row alone.
void cross_entropy_backward(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                            const std::int32_t* targets, float scale, bool gradient = true);

// As ops::masked_cross_entropy(); weights [rows] are in device memory, too.
void masked_cross_entropy(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                          const std::int32_t* targets, const ops::MaskedLoss& of,
                          std::optional<float> scale);

}  // namespace mr::cuda
