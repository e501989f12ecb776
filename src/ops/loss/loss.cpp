#include "ops/loss/loss.h"

#include <cmath>
#include <limits>

#include "ops/loss/loss_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {

void cross_entropy(const Context& ctx, std::span<double> nll, Tensor logits,
                   std::span<const std::int32_t> targets) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(logits.dtype == DType::f32 && logits.shape.rank == 2,
             "logits are f32 [tokens, vocab]");
    const std::int64_t tokens = logits.dim(0), vocab = logits.dim(1);
    MR_CHECK(static_cast<std::int64_t>(targets.size()) == tokens && nll.size() == targets.size(),
             "one target and one result per row of logits");
    for (std::int32_t id : targets)
        MR_CHECK(id >= 0 && id < vocab, "targets lie in the vocabulary");
    // Compare, subtract, exponential, add: 4 operations per logit.
    const LedgerEntry entry(ctx.ledger, OpKind::loss, logits.bytes() + targets.size_bytes(),
                            nll.size_bytes(), 4 * static_cast<std::uint64_t>(tokens * vocab));
    const auto max_kernel = MR_DISPATCH(row_max);
    const auto sum_kernel = MR_DISPATCH(row_exp_sum);
    ctx.pool->parallel_for(tokens, rows_per_piece(4 * vocab),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t t = begin; t < end; ++t) {
                                   const float* row = logits.f32(t);
                                   bool nan = false;
                                   const float top = max_kernel(row, vocab, &nan);
                                   // Infinities have no useful loss either: +inf - +inf, or a row
                                   // of -inf.
                                   double& out = nll[static_cast<std::size_t>(t)];
                                   if (nan || std::isinf(top)) {
                                       out = std::numeric_limits<double>::quiet_NaN();
                                       continue;
                                   }
                                   const double sum = sum_kernel(row, vocab, top);
                                   const double target = row[targets[static_cast<std::size_t>(t)]];
                                   out = std::log(sum) + (static_cast<double>(top) - target);
                               }
                           });
}

}  // namespace mr::ops
