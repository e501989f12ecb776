#include "core/cuda/vec4.cuh"
#include "ops/activation/activation.cuh"
#include "ops/activation/activation_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunks = 2;  // of four columns per thread: loads in flight

// Block (row, part of the row). x has rows of `stride` elements, and so has `up` unless null.
template <Activation kind, bool kGated, typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    activate_fours(Out* out, const In* x, const float* bias, int cols, int stride, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const auto row = static_cast<std::size_t>(blockIdx.x);
    x += row * static_cast<std::size_t>(stride);
    out += row * static_cast<std::size_t>(cols);
    const auto column = [&](int k) {
        return static_cast<int>((blockIdx.y * kChunks + k) * kThreads + threadIdx.x) * 4;
    };
    Raw4<In> raw[kChunks], up[kChunks];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        if (column(k) >= cols) continue;
        raw[k] = load_raw4(x + column(k));
        if constexpr (kGated) up[k] = load_raw4(x + cols + column(k));
    }
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        if (column(k) >= cols) continue;
        float v[4], more[4];
        unpack4(raw[k], v);
        if (!kGated && bias) {
            load4_weight(bias + column(k), more);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = __fadd_rn(v[i], more[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = activate<kind>(v[i]);
        if constexpr (kGated) {
            unpack4(up[k], more);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], more[i]);
        }
        store4(out + column(k), v);
    }
}

// The same for rows of any length and alignment, one column per thread.
template <Activation kind, bool kGated, typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    activate_any(Out* out, const In* x, const float* bias, int cols, int stride, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const int col = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
    if (col >= cols) return;
    const auto row = static_cast<std::size_t>(blockIdx.x);
    x += row * static_cast<std::size_t>(stride);
    float v = to_f32(x[col]);
    if (!kGated && bias) v = __fadd_rn(v, bias[col]);
    v = activate<kind>(v);
    if constexpr (kGated) v = __fmul_rn(v, to_f32(x[cols + col]));
    out[row * static_cast<std::size_t>(cols) + col] = from_f32<Out>(v);
}

// Per element; an exponential counts as one (as on the CPU).
std::uint64_t flops_of(Activation kind) {
    switch (kind) {
        case Activation::silu:
            return 4;
        case Activation::gelu:
            return 29;
        case Activation::gelu_tanh:
            return 9;
        case Activation::relu:
            return 1;
    }
    return 0;
}

template <bool kGated>
void run(const Context& ctx, Tensor out, Tensor x, Tensor bias, Activation kind) {
    const std::int64_t rows = out.rows(), cols = out.cols();
    if (rows == 0) return;
    const auto elements = static_cast<std::uint64_t>(rows * cols);
    Stamp* stamp = account(ctx, OpKind::activation, "activation",
                           {1, x.bytes() + bias.bytes(), out.bytes(),
                            elements * (flops_of(kind) + (kGated || bias ? 1 : 0)), 0});
    const bool fours =
        in_fours(x.data, cols) && in_fours(out.data, cols) && in_fours(bias.data, cols);
    const std::int64_t each = kThreads * (fours ? kChunks * 4 : 1);
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((cols + each - 1) / each));
    with_float_type(x.dtype, [&](auto in) {
        with_float_type(out.dtype, [&](auto to) {
            with_activation(kind, [&](auto k) {
                using In = decltype(in);
                using Out = decltype(to);
                constexpr Activation kKind = decltype(k)::value;
                launch(ctx, grid, dim3(kThreads), 0,
                       fours ? activate_fours<kKind, kGated, In, Out>
                             : activate_any<kKind, kGated, In, Out>,
                       static_cast<Out*>(out.data), static_cast<const In*>(x.data),
                       static_cast<const float*>(bias.data), static_cast<int>(cols),
                       static_cast<int>(x.cols()), stamp);
            });
        });
    });
}

}  // namespace

void gated_activation(const Context& ctx, Tensor out, Tensor gate_up, Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(out && gate_up && out.cols() > 0 && gate_up.cols() == 2 * out.cols() &&
                 gate_up.rows() == out.rows(),
             "gate_up is [tokens, 2 * hidden], out [tokens, hidden]");
    MR_CHECK(out.data != gate_up.data, "the result has a place of its own");
    run<true>(ctx, out, gate_up, {}, kind);
}

void activation(const Context& ctx, Tensor out, Tensor x, Tensor bias, Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(out && x && out.shape == x.shape && x.cols() > 0, "an activation keeps the shape");
    MR_CHECK(!bias || (bias.dtype == DType::f32 && bias.shape.count() == x.cols()),
             "an activation has one f32 bias per column");
    MR_CHECK(out.data != x.data || out.dtype == x.dtype, "in place the type stays");
    run<false>(ctx, out, x, bias, kind);
}

}  // namespace mr::cuda
