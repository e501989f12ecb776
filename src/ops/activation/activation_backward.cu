#include "core/cuda/vec8.cuh"
#include "ops/activation/activation.cuh"
#include "ops/activation/activation_backward_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;

struct Slope {
    float value;  // act(x)
    float slope;  // act'(x)
};

// The exponential and the division are the fast ones: a few units of f32 where the result is
// rounded to bf16.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

template <Activation kind>
__device__ __forceinline__ Slope slope_of(float x) {
    if constexpr (kind == Activation::silu) {
        const float s = sigmoid(x);
        return {x * s, s * (1.0f + x * (1.0f - s))};
    } else if constexpr (kind == Activation::gelu) {
        const float cdf = normcdff(x);
        const float density = 0.398942280f * __expf(-0.5f * x * x);
        return {x * cdf, cdf + x * density};
    } else if constexpr (kind == Activation::gelu_tanh) {
        // x * s with s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x³); s' = s (1 - s) 2u'
        const float square = x * x;
        const float s = sigmoid(1.59576912f * x * fmaf(0.044715f, square, 1.0f));
        const float flat = s * (1.0f - s);
        // Far out it is flat, and the polynomial may be infinite.
        const float more = flat > 0 ? x * flat * 1.59576912f * fmaf(0.134145f, square, 1.0f) : 0;
        return {x * s, s + more};
    } else {
        return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
    }
}

// kWidth neighbours. kGated: x and dx have the gates' rows first, `cols` elements, then those that
// they let through.
template <Activation kind, bool kGated, int kWidth>
__global__ void __launch_bounds__(kThreads)
    slopes(bf16* dx, const bf16* dy, const bf16* x, std::int64_t count, int cols, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    if constexpr (kGated) {
        const auto row = static_cast<std::size_t>(blockIdx.x);
        const auto width = static_cast<std::size_t>(cols);
        const int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kWidth;
        if (col >= cols) return;
        const std::size_t at = row * 2 * width + static_cast<std::size_t>(col);
        float gate[kWidth], up[kWidth], d[kWidth];
        load_wide<kWidth>(x + at, gate);
        load_wide<kWidth>(x + at + width, up);
        load_wide<kWidth>(dy + row * width + static_cast<std::size_t>(col), d);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const Slope s = slope_of<kind>(gate[i]);
            gate[i] = d[i] * up[i] * s.slope;
            up[i] = d[i] * s.value;
        }
        store_wide<kWidth>(dx + at, gate);
        store_wide<kWidth>(dx + at + width, up);
    } else {
        const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
        if (at >= count) return;
        float v[kWidth], d[kWidth];
        load_wide<kWidth>(x + at, v);
        load_wide<kWidth>(dy + at, d);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) d[i] *= slope_of<kind>(v[i]).slope;
        store_wide<kWidth>(dx + at, d);
    }
}

// Per element; an exponential counts as one.
std::uint64_t flops_of(Activation kind) {
    switch (kind) {
        case Activation::silu:
            return 8;
        case Activation::gelu:
            return 34;
        case Activation::gelu_tanh:
            return 15;
        case Activation::relu:
            return 2;
    }
    return 0;
}

template <bool kGated>
void run(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Activation kind) {
    const std::int64_t rows = dy.rows(), cols = dy.cols(), count = rows * cols;
    if (count == 0) return;
    Stamp* stamp = account(ctx, OpKind::activation, "activation backward",
                           {1, x.bytes() + dy.bytes(), dx.bytes(),
                            static_cast<std::uint64_t>(count) * (flops_of(kind) + kGated * 2), 0});
    bool wide = true;
    for (const Tensor& t : {dx, dy, x}) wide = wide && in_eights(t.data, kGated ? cols : count);
    const std::int64_t each = kThreads * (wide ? 8 : 1);
    const auto blocks = [&](std::int64_t work) {
        return static_cast<unsigned>((work + each - 1) / each);
    };
    const dim3 grid =
        kGated ? dim3(static_cast<unsigned>(rows), blocks(cols)) : dim3(blocks(count));
    with_activation(kind, [&](auto k) {
        constexpr Activation kKind = decltype(k)::value;
        launch(ctx, grid, dim3(kThreads), 0,
               wide ? slopes<kKind, kGated, 8> : slopes<kKind, kGated, 1>,
               static_cast<bf16*>(dx.data), static_cast<const bf16*>(dy.data),
               static_cast<const bf16*>(x.data), count, static_cast<int>(cols), stamp);
    });
}

bool all_bf16(Tensor a, Tensor b, Tensor c) {
    return a && b && c && a.dtype == DType::bf16 && b.dtype == DType::bf16 &&
           c.dtype == DType::bf16;
}

}  // namespace

void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(dgate_up, dy, gate_up), "gradients of activations are bf16");
    MR_CHECK(dgate_up.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols() &&
                 gate_up.rows() == dy.rows() && dy.cols() > 0,
             "gate_up is [tokens, 2 * hidden], dy [tokens, hidden]");
    run<true>(ctx, dgate_up, dy, gate_up, kind);
}

void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(dx, dy, x), "gradients of activations are bf16");
    MR_CHECK(dx.shape == x.shape && dy.shape == x.shape, "an activation keeps the shape");
    run<false>(ctx, dx, dy, x, kind);
}

}  // namespace mr::cuda
