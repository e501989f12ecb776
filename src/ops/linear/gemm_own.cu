// Two kernels, both with one fixed tile and one order of summation: k from front to back.
#include <type_traits>

#include "core/cuda/kernel.cuh"
#include "ops/linear/gemm_own.h"

namespace mr::cuda {
namespace {

struct Args {
    void* out;              // [tokens, n] f32 or x's type
    const void* x;          // [tokens, k]
    const void* w;          // [n, k]
    const float* bias;      // [n] or null
    const float* residual;  // [tokens, n] or null
    std::int64_t tokens, n, k;
    DType x_type, w_type, out_type;
    Stamp* stamp;
};

__device__ __forceinline__ float load(const void* from, DType type, std::int64_t i) {
    switch (type) {
        case DType::f32:
            return static_cast<const float*>(from)[i];
        case DType::f16:
            return __half2float(static_cast<const __half*>(from)[i]);
        default:
            return __bfloat162float(static_cast<const bf16*>(from)[i]);
    }
}

// The epilogue of a sum.
template <typename Out>
__device__ __forceinline__ void finish(const Args& args, std::int64_t token, std::int64_t col,
                                       float sum) {
    if (token >= args.tokens || col >= args.n) return;
    const std::int64_t at = token * args.n + col;
    if (args.residual) sum += args.residual[at];
    if (args.bias) sum += to_f32(from_f32<Out>(args.bias[col]));
    static_cast<Out*>(args.out)[at] = from_f32<Out>(sum);
}

// ---- FMA: any types, any k -----------------------------------------------------------------

namespace fma {
constexpr int kTile = 64;      // tokens and columns per block
constexpr int kDepth = 16;     // depth of k per step
constexpr int kThreads = 256;  // 16 x 16, each 4 tokens by 4 columns

template <typename Out>
__global__ void __launch_bounds__(kThreads) gemm_fma(const Args args) {
    // [k][token or column]; the padding spreads the stores of one warp over the banks
    __shared__ float xs[kDepth][kTile + 1], ws[kDepth][kTile + 1];
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const std::int64_t first_token = std::int64_t{blockIdx.y} * kTile;
    const std::int64_t first_col = std::int64_t{blockIdx.x} * kTile;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4] = {};
    for (std::int64_t k0 = 0; k0 < args.k; k0 += kDepth) {
#pragma unroll
        for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
            const int at = i * kThreads + static_cast<int>(threadIdx.x);
            const int row = at / kDepth, depth = at % kDepth;
            const bool inside = k0 + depth < args.k;
            const std::int64_t token = first_token + row, col = first_col + row;
            xs[depth][row] = inside && token < args.tokens
                                 ? load(args.x, args.x_type, token * args.k + k0 + depth)
                                 : 0.0f;
            ws[depth][row] = inside && col < args.n
                                 ? load(args.w, args.w_type, col * args.k + k0 + depth)
                                 : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < kDepth; ++depth) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = xs[depth][ty + 16 * i];
                b[i] = ws[depth][tx + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            finish<Out>(args, first_token + ty + 16 * i, first_col + tx + 16 * j, sums[i][j]);
        }
    }
}
}  // namespace fma

// ---- Tensor cores: x and w both f16 or both bf16, sm_80 and up ------------------------------

namespace mma {
constexpr int kTile = 128;     // tokens and columns per block
constexpr int kDepth = 32;     // depth of k per step
constexpr int kStride = 40;    // of a row in shared memory: 20 words, so that 8 rows x 4 words
                               // (what one load of a warp touches) lie in 32 different banks
constexpr int kThreads = 256;  // 8 warps, 2 over tokens x 4 over columns, each 64 x 32
constexpr int kWarpTokens = 64, kWarpCols = 32;
constexpr int kVec = 8;  // elements of a 16-byte load
constexpr int kLoads = kTile * kDepth / kVec / kThreads;

// c += a · b for a 16 x 16 (rows of tokens), b 16 x 8, c 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, bf16>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
}

// This thread's kLoads pieces of rows [first, first + kTile) x columns [k0, k0 + kDepth) of a
// matrix [rows, k], zero outside. Rows of whole 16 bytes are read 16 bytes at a time.
template <typename T>
__device__ __forceinline__ void fetch(uint4 (&to)[kLoads], const T* from, std::int64_t first,
                                      std::int64_t rows, std::int64_t k0, std::int64_t k,
                                      bool aligned) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int at = i * kThreads + static_cast<int>(threadIdx.x);
        const std::int64_t row = first + at / (kDepth / kVec);
        const std::int64_t col = k0 + at % (kDepth / kVec) * kVec;
        to[i] = make_uint4(0, 0, 0, 0);
        if (row >= rows || col >= k) continue;
        const T* at_row = from + row * k + col;
        if (aligned) {  // then col < k means col + kVec <= k
            to[i] = *reinterpret_cast<const uint4*>(at_row);
        } else {
            const auto* values = reinterpret_cast<const unsigned short*>(at_row);
            unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                if (col + j < k) words[j / 2] |= static_cast<unsigned>(values[j]) << (j % 2 * 16);
            }
            to[i] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

template <typename T>
__device__ __forceinline__ void keep(T (&to)[kTile][kStride], const uint4 (&from)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int at = i * kThreads + static_cast<int>(threadIdx.x);
        *reinterpret_cast<uint4*>(&to[at / (kDepth / kVec)][at % (kDepth / kVec) * kVec]) = from[i];
    }
}

template <typename T>
__device__ __forceinline__ unsigned pair(const T* at) {
    return *reinterpret_cast<const unsigned*>(at);
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) gemm_mma(const Args args, bool aligned) {
    __shared__ __align__(16) T xs[kTile][kStride];
    __shared__ __align__(16) T ws[kTile][kStride];
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const std::int64_t first_token = std::int64_t{blockIdx.y} * kTile;
    const std::int64_t first_col = std::int64_t{blockIdx.x} * kTile;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_token = warp / 4 * kWarpTokens, warp_col = warp % 4 * kWarpCols;
    const int group = lane / 4, in_group = lane % 4;  // as the instruction numbers its lanes
    const T* x = static_cast<const T*>(args.x);
    const T* w = static_cast<const T*>(args.w);

    float sums[kWarpTokens / 16][kWarpCols / 8][4] = {};
    uint4 next_x[kLoads], next_w[kLoads];
    fetch(next_x, x, first_token, args.tokens, 0, args.k, aligned);
    fetch(next_w, w, first_col, args.n, 0, args.k, aligned);
    for (std::int64_t k0 = 0; k0 < args.k; k0 += kDepth) {
        keep(xs, next_x);
        keep(ws, next_w);
        __syncthreads();
        if (k0 + kDepth < args.k) {  // loaded while the current piece is multiplied
            fetch(next_x, x, first_token, args.tokens, k0 + kDepth, args.k, aligned);
            fetch(next_w, w, first_col, args.n, k0 + kDepth, args.k, aligned);
        }
#pragma unroll
        for (int depth = 0; depth < kDepth; depth += 16) {
            unsigned b[kWarpCols / 8][2];
#pragma unroll
            for (int j = 0; j < kWarpCols / 8; ++j) {
                const T* at = &ws[warp_col + j * 8 + group][depth + in_group * 2];
                b[j][0] = pair(at);
                b[j][1] = pair(at + 8);
            }
#pragma unroll
            for (int i = 0; i < kWarpTokens / 16; ++i) {
                const T* at = &xs[warp_token + i * 16 + group][depth + in_group * 2];
                const unsigned a[4] = {pair(at), pair(at + 8 * kStride), pair(at + 8),
                                       pair(at + 8 * kStride + 8)};
#pragma unroll
                for (int j = 0; j < kWarpCols / 8; ++j) multiply<T>(sums[i][j], a, b[j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kWarpTokens / 16; ++i) {
        const std::int64_t token = first_token + warp_token + i * 16 + group;
#pragma unroll
        for (int j = 0; j < kWarpCols / 8; ++j) {
            const std::int64_t col = first_col + warp_col + j * 8 + in_group * 2;
            finish<Out>(args, token, col, sums[i][j][0]);
            finish<Out>(args, token, col + 1, sums[i][j][1]);
            finish<Out>(args, token + 8, col, sums[i][j][2]);
            finish<Out>(args, token + 8, col + 1, sums[i][j][3]);
        }
    }
}
}  // namespace mma

bool uses_tensor_cores(DType x, DType w) {
    return this_gpu().sm >= 80 && x == w && x != DType::f32;
}

bool whole_16_bytes(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

}  // namespace

const char* gemm_own_about(DType x, DType w) {
    return uses_tensor_cores(x, w) ? "tensor cores" : "FMA";
}

void gemm_own(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
              Stamp* stamp) {
    const Args args{out.data,
                    x.data,
                    w.data,
                    static_cast<const float*>(bias.data),
                    static_cast<const float*>(residual.data),
                    x.dim(0),
                    w.dim(0),
                    x.dim(1),
                    x.dtype,
                    w.dtype,
                    out.dtype,
                    stamp};
    const auto grid = [&](std::int64_t tile) {
        return dim3(static_cast<unsigned>((args.n + tile - 1) / tile),
                    static_cast<unsigned>((args.tokens + tile - 1) / tile));
    };
    with_float_type(out.dtype, [&](auto example) {
        using Out = decltype(example);
        if (!uses_tensor_cores(x.dtype, w.dtype)) {
            launch(ctx, grid(fma::kTile), dim3(fma::kThreads), 0, fma::gemm_fma<Out>, args);
            return;
        }
        const bool aligned =
            args.k % mma::kVec == 0 && whole_16_bytes(x.data) && whole_16_bytes(w.data);
        const auto run = [&](auto kernel) {
            launch(ctx, grid(mma::kTile), dim3(mma::kThreads), 0, kernel, args, aligned);
        };
        if (x.dtype == DType::bf16) {
            if constexpr (!std::is_same_v<Out, __half>) run(mma::gemm_mma<bf16, Out>);
        } else {
            if constexpr (!std::is_same_v<Out, bf16>) run(mma::gemm_mma<__half, Out>);
        }
    });
}

}  // namespace mr::cuda
