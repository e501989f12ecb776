#include "ops/loss/loss_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/loss/loss_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {

namespace {

// With a scale, also the gradient. `masked` may be null.
void losses_of(const Context& ctx, float* loss, Tensor logits, const std::int32_t* targets,
               const float* scale, const MaskedLoss* masked = nullptr) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(logits && logits.dtype == DType::f32 && logits.shape.rank == 2,
             "logits are f32 [tokens, vocab]");
    const std::int64_t tokens = logits.dim(0), vocab = logits.dim(1);
    MR_CHECK((loss && targets) || tokens == 0, "one target and one loss per row of logits");
    for (std::int64_t t = 0; t < tokens; ++t) {
        MR_CHECK(targets[t] < vocab, "targets lie in the vocabulary");
        MR_CHECK(!masked || targets[t] != masked->mask, "no target is the mask");
    }
    MR_CHECK(!masked || (masked->mask >= 0 && masked->mask < vocab),
             "the mask lies in the vocabulary");
    // Finite, but its exp() is 0.
    constexpr float kHidden = -std::numeric_limits<float>::max();
    // Compare, subtract, exponential, add, and scale: 4 or 5 operations per logit.
    const std::uint64_t per_token = static_cast<std::uint64_t>(tokens) * 4;
    const LedgerEntry entry(
        ctx.ledger, OpKind::loss, logits.bytes() + per_token,
        (scale ? logits.bytes() : 0) + per_token,
        (scale ? 5 : 4) * static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(vocab));
    const auto finite = MR_DISPATCH(row_is_finite);
    const auto max_kernel = MR_DISPATCH(row_max);
    const auto sum_kernel = MR_DISPATCH(row_exp_sum);
    const auto exp_kernel = MR_DISPATCH(row_exp);
    const auto scale_kernel = MR_DISPATCH(row_scale);
    ctx.pool->parallel_for(
        tokens, rows_per_piece(4 * vocab), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                float* row = logits.f32(t);
                const std::int32_t target = targets[t];
                const float weight = masked ? masked->weights[t] : 1.0f;
                const float hidden = masked ? row[masked->mask] : 0.0f;
                if (masked) row[masked->mask] = kHidden;
                if (target < 0 || !finite(row, vocab)) {
                    loss[t] = target < 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
                    if (scale) {
                        std::fill_n(row, vocab, loss[t]);
                    } else if (masked) {
                        row[masked->mask] = hidden;
                    }
                    continue;
                }
                bool nan = false;
                const float top = max_kernel(row, vocab, &nan);
                const double right = row[target];
                const double sum =
                    scale ? exp_kernel(row, vocab, top) : sum_kernel(row, vocab, top);
                loss[t] = static_cast<float>(std::log(sum) + (double{top} - right));
                if (masked) loss[t] *= weight;
                if (!scale) {
                    if (masked) row[masked->mask] = hidden;
                    continue;
                }
                const float factor = masked ? *scale * weight : *scale;
                scale_kernel(row, vocab, static_cast<float>(double{factor} / sum));
                row[target] -= factor;
                if (masked) row[masked->mask] = 0;
            }
        });
}

}  // namespace

void cross_entropy_backward(const Context& ctx, float* loss, Tensor logits,
                            const std::int32_t* targets, float scale) {
    losses_of(ctx, loss, logits, targets, &scale);
}

void cross_entropy_losses(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets) {
    losses_of(ctx, loss, logits, targets, nullptr);
}

void masked_cross_entropy(const Context& ctx, float* loss, Tensor logits,
                          const std::int32_t* targets, const MaskedLoss& of,
                          std::optional<float> scale) {
    losses_of(ctx, loss, logits, targets, scale ? &*scale : nullptr, &of);
}

}  // namespace mr::ops
