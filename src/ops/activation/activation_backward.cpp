#include "ops/activation/activation_backward.h"

#include "ops/activation/activation.h"
#include "ops/activation/activation_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

// Checks gate_up [tokens, 2 hidden] and y [tokens, hidden].
void check_gated(const Context& ctx, const Tensor& gate_up, const Tensor& y) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(gate_up && y && gate_up.dtype == DType::f32 && y.dtype == DType::f32,
             "activations are f32");
    MR_CHECK(y.shape.rank == 2 && gate_up.shape == (Shape{y.dim(0), 2 * y.dim(1)}),
             "gate and up lie side by side: [tokens, 2 hidden]");
}

// Per element, for act and act' together; an exponential counts as one.
std::uint64_t slope_flops(Activation kind) {
    switch (kind) {
        case Activation::silu:
            return 8;
        case Activation::gelu:
            return 32;
        case Activation::gelu_tanh:
            return 17;
        case Activation::relu:
            return 2;
    }
    return 0;
}

}  // namespace

void gated_activation(const Context& ctx, Tensor out, Tensor gate_up, Activation kind) {
    check_gated(ctx, gate_up, out);
    const std::int64_t hidden = out.dim(1);
    const LedgerEntry entry(
        ctx.ledger, OpKind::activation, gate_up.bytes(), out.bytes(),
        static_cast<std::uint64_t>(out.shape.count()) * (activation_flops(kind) + 1));
    const auto kernel = MR_DISPATCH(activate_range);
    ctx.pool->parallel_for(out.dim(0), rows_per_piece(4 * hidden),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t t = begin; t < end; ++t) {
                                   const float* gate = gate_up.f32(t);
                                   kernel(out.f32(t), gate, gate + hidden, hidden, kind);
                               }
                           });
}

void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               Activation kind) {
    check_gated(ctx, gate_up, dy);
    check_gated(ctx, dgate_up, dy);
    const std::int64_t hidden = dy.dim(1);
    const LedgerEntry entry(ctx.ledger, OpKind::activation, gate_up.bytes() + dy.bytes(),
                            dgate_up.bytes(),
                            static_cast<std::uint64_t>(dy.shape.count()) * (slope_flops(kind) + 3));
    const auto kernel = MR_DISPATCH(gated_backward_range);
    ctx.pool->parallel_for(
        dy.dim(0), rows_per_piece(4 * hidden), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                const float* gate = gate_up.f32(t);
                float* to = dgate_up.f32(t);
                kernel(to, to + hidden, dy.f32(t), gate, gate + hidden, hidden, kind);
            }
        });
}

void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Activation kind) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(
        dx && dy && x && dx.dtype == DType::f32 && dy.dtype == DType::f32 && x.dtype == DType::f32,
        "activations are f32");
    MR_CHECK(dx.shape == x.shape && dy.shape == x.shape, "an activation keeps the shape");
    const std::int64_t count = x.shape.count();
    const LedgerEntry entry(ctx.ledger, OpKind::activation, x.bytes() + dy.bytes(), dx.bytes(),
                            static_cast<std::uint64_t>(count) * (slope_flops(kind) + 1));
    const auto kernel = MR_DISPATCH(activate_backward_range);
    ctx.pool->parallel_for(
        count, rows_per_piece(4), [&](std::int64_t begin, std::int64_t end, int) {
            kernel(dx.f32() + begin, dy.f32() + begin, x.f32() + begin, end - begin, kind);
        });
}

}  // namespace mr::ops
