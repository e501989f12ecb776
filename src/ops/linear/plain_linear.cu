// linear_plain(): a warp a row of w, plain f32 arithmetic. For f32 weights, for rows that are not
// whole 16-byte pieces, and for devices without the tensor cores of linear_small().
#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/linear/linear_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kTogether = 4;  // tokens that share a read of the weights

// Every lane adds every 32nd column (or group of 4 columns), then the lanes are added: the order
// depends on k alone.
template <typename T, bool kByFour>
__global__ void plain_kernel(float* out32, T* out, const T* x, const T* w, const float* bias,
                             int rows, int n, int k, bool add, Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
    if (row >= n) return;
    const T* wr = w + static_cast<std::int64_t>(row) * k;
    for (int first = 0; first < rows; first += kTogether) {
        const int count = min(kTogether, rows - first);
        float sum[kTogether] = {};
        constexpr int kStep = kByFour ? 4 : 1;
        for (int c = lane * kStep; c < k; c += 32 * kStep) {
            float v[kStep];
            if constexpr (kByFour && sizeof(T) == 4) {
                const float4 four = *reinterpret_cast<const float4*>(wr + c);
                v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            } else {
#pragma unroll
                for (int j = 0; j < kStep; ++j) v[j] = to_f32(wr[c + j]);
            }
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
    MR_CHECK(x.dtype == w.dtype, "input and weights are of one type");
    MR_CHECK(out.dtype == DType::f32 || (!add && out.dtype == x.dtype),
             "out is f32, or of x's type where nothing is added to");
    Stamp* stamp = account(
        ctx, kind, name,
        {1, w.bytes() + x.bytes() + (add ? out.bytes() : 0), out.bytes(),
         2 * static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(w.shape.count()), 0});
    with_float_type(w.dtype, [&](auto type) {
        using T = decltype(type);
        const auto go = [&](auto* kernel) {
            launch(ctx, dim3(static_cast<unsigned>((n + kWarps - 1) / kWarps)), dim3(32 * kWarps),
                   0, kernel, out.dtype == DType::f32 ? static_cast<float*>(out.data) : nullptr,
                   static_cast<T*>(out.data), static_cast<const T*>(x.data),
                   static_cast<const T*>(w.data), static_cast<const float*>(bias.data), rows, n, k,
                   add, stamp);
        };
        if (k % 4 == 0) {
            go(plain_kernel<T, true>);
        } else {
            go(plain_kernel<T, false>);
        }
    });
}

}  // namespace mr::cuda
