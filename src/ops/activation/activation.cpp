#include "ops/activation/activation.h"

#include "ops/activation/activation_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

void run(const Context& ctx, Tensor out, Tensor x, Tensor up, Activation kind) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(out.dtype == DType::f32 && x.dtype == DType::f32 && up.dtype == DType::f32,
             "activations are f32");
    MR_CHECK(out.shape == x.shape, "an activation keeps the shape");
    MR_CHECK(!up || up.shape == x.shape, "gate and up have one shape");
    const std::int64_t count = x.shape.count();
    const auto elements = static_cast<std::uint64_t>(count);
    const LedgerEntry entry(ctx.ledger, OpKind::activation, elements * (up ? 8 : 4), elements * 4,
                            elements * (activation_flops(kind) + (up ? 1 : 0)));
    float* to = out.f32();
    const float* from = x.f32();
    const float* factor = up ? up.f32() : nullptr;
    const auto kernel = MR_DISPATCH(activate_range);
    // An exponential and a division cost as much as copying 16 elements.
    ctx.pool->parallel_for(
        count, rows_per_piece(16), [&](std::int64_t begin, std::int64_t end, int) {
            kernel(to + begin, from + begin, factor ? factor + begin : nullptr, end - begin, kind);
        });
}

}  // namespace

const char* activation_name(Activation kind) {
    switch (kind) {
        case Activation::silu:
            return "silu";
        case Activation::gelu:
            return "gelu";
        case Activation::gelu_tanh:
            return "gelu_tanh";
        case Activation::relu:
            return "relu";
    }
    return "?";
}

std::uint64_t activation_flops(Activation kind) {
    switch (kind) {
        case Activation::silu:
            return 4;
        case Activation::gelu:
            return 29;  // mostly the polynomial of Phi
        case Activation::gelu_tanh:
            return 9;
        case Activation::relu:
            return 1;
    }
    return 0;
}

void activation(const Context& ctx, Tensor out, Tensor x, Activation kind) {
    run(ctx, out, x, {}, kind);
}

void gated_activation(const Context& ctx, Tensor out, Tensor gate, Tensor up, Activation kind) {
    MR_CHECK(up, "a gated activation has an up");
    run(ctx, out, gate, up, kind);
}

}  // namespace mr::ops
