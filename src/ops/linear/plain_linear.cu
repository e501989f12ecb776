// linear_plain(): one warp for each row of w, plain f32 arithmetic. For f32 weights, for rows that
// are not whole 16-byte pieces, and for devices without the tensor cores of linear_small().
#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/tile_layout.h"

namespace mr::cuda {
namespace {

constexpr int kPlainLinearWarps = 4;
constexpr int kTogether = 4;  // tokens that share one read of the weights

// A row of f32, f16 or bf16. value(c) is column c, four(c) columns c .. c + 3.
template <typename T, bool kByFour>
struct FloatRow {
    static constexpr int kStep = kByFour ? 4 : 1;  // columns a lane takes at a time
    const T* w;
    __device__ FloatRow(const void* weights, int row, int k)
        : w(static_cast<const T*>(weights) + static_cast<std::int64_t>(row) * k) {}
    __device__ void load(float (&v)[kStep], int c) const {
        if constexpr (kByFour && sizeof(T) == 4) {
            const float4 four = *reinterpret_cast<const float4*>(w + c);
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < kStep; ++j) v[j] = to_f32(w[c + j]);
        }
    }
};

// A row of q8_0x8 or q4_0x8 (tile_layout.h): four columns of one block lie side by side.
template <DType kType>
struct TiledRow {
    static constexpr int kStep = 4;
    const std::byte* w;
    std::int64_t granules;
    int row;
    __device__ TiledRow(const void* weights, int row_, int k)
        : w(static_cast<const std::byte*>(weights)),
          granules(ops::tile_granules(kType, k)),
          row(row_) {}
    __device__ void load(float (&v)[kStep], int c) const {
        const auto quants =
            *reinterpret_cast<const unsigned*>(w + ops::tile_quant(kType, granules, row, c));
        const float scale = __half2float(
            *reinterpret_cast<const __half*>(w + ops::tile_scale(kType, granules, row, c)));
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
            const unsigned byte = quants >> (8 * j);
            const int q = kType == DType::q8_0x8
                              ? static_cast<signed char>(byte & 0xff)
                              : static_cast<int>(byte >> ops::tile_shift(c) & 15) - 8;
            v[j] = scale * static_cast<float>(q);
        }
    }
};

// Every lane adds every 32nd column (or group of 4 columns), then the lanes are added: the order
// depends on k alone.
template <typename T, typename Row>
__global__ void plain_kernel(float* out32, T* out, const T* x, const void* w, const float* bias,
                             int rows, int n, int k, bool add, Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row =
        static_cast<int>(blockIdx.x) * kPlainLinearWarps + static_cast<int>(threadIdx.x) / 32;
    if (row >= n) return;
    const Row wr(w, row, k);
    constexpr int kStep = Row::kStep;
    for (int first = 0; first < rows; first += kTogether) {
        const int count = min(kTogether, rows - first);
        float sum[kTogether] = {};
        for (int c = lane * kStep; c < k; c += 32 * kStep) {
            float v[kStep];
            wr.load(v, c);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                if (i >= count) break;
                const T* xr = x + static_cast<std::int64_t>(first + i) * k + c;
#pragma unroll
                for (int j = 0; j < kStep; ++j) sum[i] = __fmaf_rn(to_f32(xr[j]), v[j], sum[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            float total = warp_sum(sum[i]);
            if (i >= count || lane != 0) continue;
            const std::int64_t at = static_cast<std::int64_t>(first + i) * n + row;
            if (bias) total += bias[row];
            if (out32) {
                out32[at] = add ? out32[at] + total : total;
            } else {
                out[at] = from_f32<T>(total);
            }
        }
    }
}

}  // namespace

void linear_plain(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, bool add,
                  OpKind kind, const char* name) {
    const auto rows = static_cast<int>(x.rows()), n = static_cast<int>(w.rows());
    const auto k = static_cast<int>(w.cols());
    MR_CHECK(x.cols() == k && out.rows() == rows && out.cols() == n, "out [rows, n] = x [rows, k]");
    MR_CHECK(x.dtype == w.dtype || ops::is_tiled(w.dtype),
             "input and weights are of one type, or the weights are tiles");
    MR_CHECK(!ops::is_tiled(w.dtype) || k % ops::kTileBlock == 0, "tiles have whole blocks");
    MR_CHECK(out.dtype == DType::f32 || (!add && out.dtype == x.dtype),
             "out is f32, or of x's type where nothing is added to");
    Stamp* stamp = account(
        ctx, kind, name,
        {1, w.bytes() + x.bytes() + (add ? out.bytes() : 0), out.bytes(),
         2 * static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(w.shape.count()), 0});
    with_float_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        const auto go = [&](auto* kernel) {
            launch(ctx,
                   dim3(static_cast<unsigned>((n + kPlainLinearWarps - 1) / kPlainLinearWarps)),
                   dim3(32 * kPlainLinearWarps), 0, kernel,
                   out.dtype == DType::f32 ? static_cast<float*>(out.data) : nullptr,
                   static_cast<T*>(out.data), static_cast<const T*>(x.data), w.data,
                   static_cast<const float*>(bias.data), rows, n, k, add, stamp);
        };
        if (w.dtype == DType::q8_0x8) {
            go(plain_kernel<T, TiledRow<DType::q8_0x8>>);
        } else if (w.dtype == DType::q4_0x8) {
            go(plain_kernel<T, TiledRow<DType::q4_0x8>>);
        } else if (k % 4 == 0) {
            go(plain_kernel<T, FloatRow<T, true>>);
        } else {
            go(plain_kernel<T, FloatRow<T, false>>);
        }
    });
}

}  // namespace mr::cuda
