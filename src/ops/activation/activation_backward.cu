#include <algorithm>

#include "core/cuda/fast_math.cuh"
#include "core/cuda/vec8.cuh"
#include "ops/activation/activation.cuh"
#include "ops/activation/activation_backward_cuda.h"
#include "ops/activation/activation_cuda.h"
#include "ops/add/parts_cuda.h"
#include "ops/linear/linear_train_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kActivationBackwardThreads = 256;

struct Slope {
    float value;  // act(x)
    float slope;  // act'(x)
};

// 1 / (1 + 2^x): a sigmoid, if x includes the factor -log2(e).
__device__ __forceinline__ float sigmoid_of_exp2(float x) {
    return fast_inverse(1.0f + fast_exp2(x));
}

template <Activation kind>
__device__ __forceinline__ Slope slope_of(float x) {
    if constexpr (kind == Activation::silu) {
        const float s = sigmoid_of_exp2(-kLog2E * x);
        return {x * s, s * (1.0f + x * (1.0f - s))};
    } else if constexpr (kind == Activation::gelu) {
        const float cdf = normcdff(x);
        const float density = 0.398942280f * fast_exp(-0.5f * x * x);
        return {x * cdf, cdf + x * density};
    } else if constexpr (kind == Activation::gelu_tanh) {
        // x * s with s = sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x³); s' = s (1 - s) 2u'
        const float square = x * x;
        constexpr float kLinear = -1.59576912f * kLog2E, kCubic = kLinear * 0.044715f;
        const float s = sigmoid_of_exp2(x * fmaf(kCubic, square, kLinear));
        const float flat = s * (1.0f - s);
        // Far from 0 the slope is constant, and the polynomial may be infinite.
        const float steep = fmaf(0.134145f * 1.59576912f, square, 1.59576912f);
        const float more = flat > 0 ? __fmul_rn(__fmul_rn(x, flat), steep) : 0;
        return {x * s, __fadd_rn(s, more)};
    } else {
        static_assert(kind == Activation::relu);
        return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
    }
}

// Eight neighbouring elements of a bias, 16-byte aligned.
__device__ __forceinline__ void load8_f32(const float* p, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 four = __ldg(reinterpret_cast<const float4*>(p) + i);
        v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
}

// kWidth neighbouring elements. kGated: rows of x and dx have `cols` gates first, then `cols`
// values to be gated. Not gated: `bias`, or null, is added to x.
template <Activation kind, bool kGated, int kWidth>
__global__ void __launch_bounds__(kActivationBackwardThreads)
    slopes(bf16* dx, const bf16* dy, const bf16* x, const float* bias, std::int64_t count, int cols,
           Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    if constexpr (kGated) {
        const auto row = static_cast<std::size_t>(blockIdx.x);
        const auto width = static_cast<std::size_t>(cols);
        const int col =
            static_cast<int>(blockIdx.y * kActivationBackwardThreads + threadIdx.x) * kWidth;
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
        const std::int64_t at =
            (std::int64_t{blockIdx.x} * kActivationBackwardThreads + threadIdx.x) * kWidth;
        if (at >= count) return;
        float v[kWidth], d[kWidth];
        load_wide<kWidth>(x + at, v);
        load_wide<kWidth>(dy + at, d);
        if (bias) {  // eight at a time only if rows allow it
            const std::int64_t col = at % cols;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) v[i] = __fadd_rn(v[i], bias[col + i]);
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) d[i] *= slope_of<kind>(v[i]).slope;
        store_wide<kWidth>(dx + at, d);
    }
}

// Rows per block, such that every thread has four loads in flight. With one, memory is idle while
// blocks start and end; with eight and more, fewer threads fit.
template <bool kGated>
constexpr int kDeep = kGated ? 2 : 4;

// Each thread has eight columns of kDeep rows; block (rows, columns). kGated: x has rows twice as
// long, and there is no bias.
template <Activation kind, bool kGated>
__global__ void __launch_bounds__(kActivationBackwardThreads)
    values(bf16* out, const bf16* x, const float* bias, std::int64_t rows, int cols, Stamp* stamp) {
    constexpr int kRows = kDeep<kGated>;
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const int col = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (col >= cols) return;
    const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
    const int left = static_cast<int>(min(std::int64_t{kRows}, rows - first));
    x += first * cols * (kGated ? 2 : 1) + col;
    out += first * cols + col;
    uint4 raw[kRows], through[kRows];
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
        if (j >= left) continue;
        const bf16* from = x + std::int64_t{j} * cols * (kGated ? 2 : 1);
        raw[j] = *reinterpret_cast<const uint4*>(from);
        if constexpr (kGated) through[j] = *reinterpret_cast<const uint4*>(from + cols);
    }
    float add[8] = {};
    if (!kGated && bias) load8_f32(bias + col, add);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
        if (j >= left) continue;
        float v[8], up[8] = {};
        unpack8(raw[j], v);
        if constexpr (kGated) unpack8(through[j], up);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if constexpr (!kGated) v[i] = __fadd_rn(v[i], add[i]);
            v[i] = slope_of<kind>(v[i]).value * (kGated ? up[i] : 1.0f);
        }
        *reinterpret_cast<uint4*>(out + std::int64_t{j} * cols) = pack8(v);
    }
}

constexpr int kActivationBackwardWarps = kActivationBackwardThreads / 32;
constexpr int kRows = 2;  // per warp, in flight
constexpr int kHeld = 3;  // blocks per multiprocessor, limited by registers

// Block (256 columns, part of the rows): a warp takes every 8th of these rows, a lane 8 columns.
// The next rows are loaded while these are computed.
template <Activation kind>
__global__ void __launch_bounds__(kActivationBackwardThreads, kHeld)
    slopes_and_sums(bf16* dx, float* parts, const bf16* dy, const bf16* x, const float* bias,
                    std::int64_t rows, std::int64_t each, int cols, Stamp* stamp) {
    __shared__ float sums[kActivationBackwardWarps][256];
    wait_for_previous();
    stamp_begin(stamp);
    let_next_start();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int first_col = static_cast<int>(blockIdx.x) * 256, col = first_col + lane * 8;
    const std::int64_t first = std::int64_t{blockIdx.y} * each;
    const std::int64_t last = min(rows, first + each);
    float sum[8] = {}, add[8] = {};
    if (col < cols) {
        if (bias) load8_f32(bias + col, add);
        uint4 next_x[kRows], next_d[kRows];
        const auto bring = [&](std::int64_t row) {
#pragma unroll
            for (int j = 0; j < kRows; ++j) {
                const std::int64_t at = (row + j * kActivationBackwardWarps) * cols + col;
                if (row + j * kActivationBackwardWarps >= last) continue;
                next_x[j] = *reinterpret_cast<const uint4*>(x + at);
                next_d[j] = *reinterpret_cast<const uint4*>(dy + at);
            }
        };
        bring(first + warp);
        for (std::int64_t row = first + warp; row < last; row += kRows * kActivationBackwardWarps) {
            uint4 raw_x[kRows], raw_d[kRows];
#pragma unroll
            for (int j = 0; j < kRows; ++j) {
                raw_x[j] = next_x[j];
                raw_d[j] = next_d[j];
            }
            bring(row + kRows * kActivationBackwardWarps);
#pragma unroll
            for (int j = 0; j < kRows; ++j) {
                if (row + j * kActivationBackwardWarps >= last) continue;
                float v[8], d[8];
                unpack8(raw_x[j], v);
                unpack8(raw_d[j], d);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    d[i] *= slope_of<kind>(__fadd_rn(v[i], add[i])).slope;
                }
                const uint4 rounded = pack8(d);
                *reinterpret_cast<uint4*>(dx + (row + j * kActivationBackwardWarps) * cols + col) =
                    rounded;
                unpack8(rounded, d);
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[i] += d[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[warp][lane * 8 + i] = sum[i];
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x);
    if (first_col + mine < cols) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kActivationBackwardWarps; ++w) total += sums[w][mine];
        parts[std::int64_t{blockIdx.y} * cols + first_col + mine] = total;
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
void run(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Tensor bias, Activation kind) {
    const std::int64_t rows = dy.rows(), cols = dy.cols(), count = rows * cols;
    if (count == 0) return;
    Stamp* stamp = account(ctx, OpKind::activation, "activation backward",
                           {1, x.bytes() + dy.bytes(), dx.bytes(),
                            static_cast<std::uint64_t>(count) * (flops_of(kind) + kGated * 2), 0});
    bool wide = true;
    for (const Tensor& t : {dx, dy, x}) {
        wide = wide && in_eights(t.data, kGated || bias ? cols : count);
    }
    const std::int64_t each = kActivationBackwardThreads * (wide ? 8 : 1);
    const auto blocks = [&](std::int64_t work) {
        return static_cast<unsigned>((work + each - 1) / each);
    };
    const dim3 grid =
        kGated ? dim3(static_cast<unsigned>(rows), blocks(cols)) : dim3(blocks(count));
    with_activation(kind, [&](auto k) {
        constexpr Activation kKind = decltype(k)::value;
        launch(ctx, grid, dim3(kActivationBackwardThreads), 0,
               wide ? slopes<kKind, kGated, 8> : slopes<kKind, kGated, 1>,
               static_cast<bf16*>(dx.data), static_cast<const bf16*>(dy.data),
               static_cast<const bf16*>(x.data), static_cast<const float*>(bias.data), count,
               static_cast<int>(cols), stamp);
    });
}

bool all_bf16(Tensor a, Tensor b, Tensor c) {
    return a && b && c && a.dtype == DType::bf16 && b.dtype == DType::bf16 &&
           c.dtype == DType::bf16;
}

bool is_bias(Tensor bias, std::int64_t cols) {
    return !bias || (bias.dtype == DType::f32 && bias.shape.count() == cols);
}

}  // namespace

void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(dgate_up, dy, gate_up), "gradients of activations are bf16");
    MR_CHECK(dgate_up.shape == gate_up.shape && gate_up.cols() == 2 * dy.cols() &&
                 gate_up.rows() == dy.rows() && dy.cols() > 0,
             "gate_up is [tokens, 2 * hidden], dy [tokens, hidden]");
    run<true>(ctx, dgate_up, dy, gate_up, {}, kind);
}

void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(dx, dy, x), "gradients of activations are bf16");
    MR_CHECK(dx.shape == x.shape && dy.shape == x.shape, "an activation keeps the shape");
    run<false>(ctx, dx, dy, x, {}, kind);
}

void activation_backward(const Context& ctx, Tensor dx, Tensor dbias, Tensor dy, Tensor x,
                         Tensor bias, Activation kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(dx, dy, x), "gradients of activations are bf16");
    MR_CHECK(dx.shape == x.shape && dy.shape == x.shape, "an activation keeps the shape");
    const std::int64_t rows = x.rows(), cols = x.cols();
    MR_CHECK(dbias && dbias.dtype == DType::f32 && dbias.shape.count() == cols,
             "the bias's gradient is f32, one per column");
    MR_CHECK(is_bias(bias, cols), "the bias is f32, one per column");
    MR_CHECK(ctx.scratch.size() >= linear_train_scratch_bytes(cols), "scratch was planned");
    if (rows == 0) return;
    if (!in_eights(dx.data, cols) || !in_eights(dy.data, cols) || !in_eights(x.data, cols) ||
        !in_eights(bias.data, cols)) {
        run<false>(ctx, dx, dy, x, bias, kind);
        bias_gradient(ctx, dbias, Tensor(dx.data, dx.dtype, {rows, cols}));
        return;
    }
    Stamp* stamp = account(ctx, OpKind::activation, "activation backward",
                           {1, x.bytes() + dy.bytes() + bias.bytes(), dx.bytes() + dbias.bytes(),
                            static_cast<std::uint64_t>(rows * cols) * (flops_of(kind) + 1), 0});
    // Two rounds of the blocks that an H200 holds; at most as many parts as there is scratch for.
    const std::int64_t across = (cols + 255) / 256;
    const auto parts = static_cast<int>(std::clamp<std::int64_t>(2 * 132 * kHeld / across, 8, 256));
    const std::int64_t each = (rows + parts - 1) / parts;
    auto* sums = reinterpret_cast<float*>(ctx.scratch.data());
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(parts));
    with_activation(kind, [&](auto k) {
        launch(ctx, grid, dim3(kActivationBackwardThreads), 0, slopes_and_sums<decltype(k)::value>,
               static_cast<bf16*>(dx.data), sums, static_cast<const bf16*>(dy.data),
               static_cast<const bf16*>(x.data), static_cast<const float*>(bias.data), rows, each,
               static_cast<int>(cols), stamp);
    });
    add_parts(ctx, dbias.f32(), sums, parts, cols, cols, stamp);
}

void activation_train(const Context& ctx, Tensor out, Tensor x, Tensor bias, Activation kind,
                      bool gated) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(all_bf16(out, x, x), "activations of training are bf16");
    const std::int64_t rows = out.rows(), cols = out.cols();
    MR_CHECK(cols > 0 && x.rows() == rows && x.cols() == (gated ? 2 : 1) * cols &&
                 (!gated || out.data != x.data),
             "x is [tokens, hidden], or [tokens, 2 * hidden] with gates, out [tokens, hidden]");
    MR_CHECK(is_bias(bias, cols) && !(bias && gated),
             "the bias is f32, one per column, without gates");
    if (rows == 0) return;
    if (!in_eights(out.data, cols) || !in_eights(x.data, cols) || !in_eights(bias.data, cols)) {
        if (gated) {
            gated_activation(ctx, out, x, kind);
        } else {
            activation(ctx, out, x, bias, kind);
        }
        return;
    }
    Stamp* stamp = account(
        ctx, OpKind::activation, "activation",
        {1, x.bytes() + bias.bytes(), out.bytes(),
         static_cast<std::uint64_t>(rows * cols) * (flops_of(kind) / 2 + (gated || bias ? 1 : 0)),
         0});
    // A row in equal parts: the largest blocks that leave no thread idle.
    const std::int64_t deep = gated ? kDeep<true> : kDeep<false>, eights = cols / 8;
    const std::int64_t parts =
        (eights + kActivationBackwardThreads - 1) / kActivationBackwardThreads;
    const std::int64_t threads = ((eights + parts - 1) / parts + 31) / 32 * 32;
    const dim3 grid(static_cast<unsigned>((rows + deep - 1) / deep), static_cast<unsigned>(parts));
    with_activation(kind, [&](auto k) {
        constexpr Activation kKind = decltype(k)::value;
        launch(ctx, grid, dim3(static_cast<unsigned>(threads)), 0,
               gated ? values<kKind, true> : values<kKind, false>, static_cast<bf16*>(out.data),
               static_cast<const bf16*>(x.data), static_cast<const float*>(bias.data), rows,
               static_cast<int>(cols), stamp);
    });
}

}  // namespace mr::cuda
