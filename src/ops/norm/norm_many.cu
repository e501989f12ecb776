// Norms of many rows of f16 or bf16, at the speed of memory (sm_90):
// - The weights and biases (f32: more bytes per row than the row itself) are kept in shared
//   memory for all rows of a block. Through L1, which the rows pass too, they would come from L2
//   again for every row.
// - The rows are loaded by bulk copies (cp.async.bulk): every group of warps has a ring of
//   kStages rows with their residuals in shared memory, and the next ones are loaded while
//   this one is computed. No register waits for a load.
// - As many blocks as the device holds, each taking row after row:
//   the weights are loaded once per block.
// What else was measured: docs/cuda-engine.md, "Norms of many rows".
#include <algorithm>
#include <cstddef>
#include <limits>

#include "core/cuda/bulk.cuh"
#include "core/cuda/copy.cuh"
#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_many.cuh"
#include "ops/norm/norm_many_f32.cuh"
#include "ops/norm/norm_row.cuh"
#include "ops/norm/norm_weights_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kMostThreads = 256;  // per block
constexpr int kStages = 2;
constexpr int kWide = 8;  // elements of a vector, 16 bytes
constexpr int kEach = kWide / kRowChunk;
// Measured to be faster from here on (2048 rows of 2560). Short rows would leave too few bytes in
// flight: a multiprocessor needs about 36 KB; 1024 columns give 32 KB and more.
constexpr int kFewestRows = 2048, kFewestCols = 1024;

// How a group of kGroupThreads threads holds a row: kColumns columns each, vectors thread +
// kThreads * k.
template <int kGroupThreads, int kColumns>
struct Layout {
    static constexpr int kThreads = kGroupThreads;
    static constexpr int kVectors = kColumns / kWide;
    static constexpr int kChunks = kColumns / kRowChunk;
    static constexpr int kMostCols = kThreads * kColumns;
    static constexpr int kMostGroups = kMostThreads / kThreads;
    using Row = float[kChunks][kRowChunk];
    // The number of this thread's vectors of a row: k = 0 ... mine - 1.
    static __device__ __forceinline__ int mine(int cols, int thread) {
        return (cols / kWide - thread + kThreads - 1) / kThreads;
    }
    static __device__ __forceinline__ void sync(int group) {
        if constexpr (kThreads == 32) {
            __syncwarp();
        } else {
            WarpsTeam<kThreads>{group * kThreads, 1 + group}.sync();
        }
    }
};

// A vector of shared memory; zeros if !on.
__device__ __forceinline__ uint4 load_shared(unsigned at, bool on) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (on) {
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(at)
                     : "memory");
    }
    return v;
}
template <typename T>
__device__ __forceinline__ void unpack(const uint4& vector, float (*v)[kRowChunk]) {
    unpack4(Raw4<T>{make_uint2(vector.x, vector.y)}, v[0]);
    unpack4(Raw4<T>{make_uint2(vector.z, vector.w)}, v[1]);
}
template <typename T>
__device__ __forceinline__ void store(T* to, const Raw4<T> (&chunks)[kEach]) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(chunks[0].bits.x, chunks[0].bits.y, chunks[1].bits.x, chunks[1].bits.y);
}

// Per-column arrays in shared memory, one after another: weight, bias, weight2, bias2, as far as
// present. The chunks of a vector are separated, so that neighbouring threads read neighbouring 16
// bytes: chunk e of vector v is float4 e * vectors + v. Always f32 there; T: the rows' type.
template <typename T>
__device__ __forceinline__ void bring_weights(float4* to, const NormArgs& a) {
    const int vectors = a.cols / kWide;
    for (const float* from : {a.weight, a.bias, a.weight2, a.bias2}) {
        if (!from) continue;
        for (int i = static_cast<int>(threadIdx.x); i < vectors * kEach;
             i += static_cast<int>(blockDim.x)) {
            float4* const place = to + i % kEach * vectors + i / kEach;
            if (a.weights_like_rows) {
                float v[kRowChunk];
                load4(reinterpret_cast<const T*>(from) + kRowChunk * i, v);
                *place = make_float4(v[0], v[1], v[2], v[3]);
            } else {
                copy16(shared_address(place), from + kRowChunk * i);
            }
        }
        to += vectors * kEach;
    }
    commit_copies();
}

// s = x + residual from shared memory, x at `from`, the residual after it; the sum is stored if
// requested.
template <typename L, typename T, bool kResidual>
__device__ __forceinline__ void take_row(typename L::Row& s, const NormArgs& a, unsigned from,
                                         std::size_t first, int thread, int mine) {
    const unsigned row_bytes = static_cast<unsigned>(a.cols) * sizeof(T);
    // All loads are issued before the first value is used.
    uint4 x[L::kVectors], r[L::kVectors];
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) {
        const unsigned at = from + 16 * static_cast<unsigned>(thread + L::kThreads * k);
        x[k] = load_shared(at, k < mine);
        if constexpr (kResidual) r[k] = load_shared(at + row_bytes, k < mine);
    }
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) {
        unpack<T>(x[k], s + k * kEach);
        if constexpr (kResidual) {
            float more[kEach][kRowChunk];
            unpack<T>(r[k], more);
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
#pragma unroll
                for (int i = 0; i < kRowChunk; ++i) {
                    s[k * kEach + e][i] = __fadd_rn(s[k * kEach + e][i], more[e][i]);
                }
            }
        }
    }
    if constexpr (kResidual) {
        if (!a.sum) return;
        T* sum = static_cast<T*>(a.sum) + first;
#pragma unroll
        for (int k = 0; k < L::kVectors; ++k) {
            Raw4<T> rounded[kEach];
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                rounded[e] = pack4(s[k * kEach + e], T{});
                unpack4(rounded[e], s[k * kEach + e]);
            }
            if (k < mine) store(sum + (thread + L::kThreads * k) * kWide, rounded);
        }
    }
}

// out = norm(s) * w + b, w and b in shared memory; no biases: none.
template <typename L, typename T>
__device__ __forceinline__ void put_row(T* out, const typename L::Row& s, const RowStats& stats,
                                        const float4* w, const float4* b, int cols, int thread,
                                        int mine) {
    const int vectors = cols / kWide;
#pragma unroll
    for (int k = 0; k < L::kVectors; ++k) {
        const int v = thread + L::kThreads * k;
        if (k >= mine) break;
        Raw4<T> chunks[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const float(&from)[kRowChunk] = s[k * kEach + e];
            const float4 weight = w[e * vectors + v];
            const float4 bias = b ? b[e * vectors + v] : make_float4(0, 0, 0, 0);
            const float y[kRowChunk] = {
                normed(from[0], stats, weight.x, bias.x), normed(from[1], stats, weight.y, bias.y),
                normed(from[2], stats, weight.z, bias.z), normed(from[3], stats, weight.w, bias.w)};
            chunks[e] = pack4(y, T{});
        }
        store(out + v * kWide, chunks);
    }
}

template <typename L, typename T, bool kResidual>
__global__ void __launch_bounds__(kMostThreads, 1) norm_bulk(const NormArgs a) {
    constexpr int kSpace = kRowShared<L::kThreads, kEach>;
    extern __shared__ float4 weights[];
    __shared__ std::uint64_t barriers[L::kMostGroups][kStages];
    __shared__ float space[kSpace > 0 ? L::kMostGroups * kSpace : 1];
    const int groups = static_cast<int>(blockDim.x) / L::kThreads;
    const int group = static_cast<int>(threadIdx.x) / L::kThreads;
    const int thread = static_cast<int>(threadIdx.x) % L::kThreads;
    const unsigned row_bytes = static_cast<unsigned>(a.cols) * sizeof(T);
    const unsigned stage_bytes = (kResidual ? 2 : 1) * row_bytes;
    const int arrays = 1 + (a.bias != nullptr) + (a.weight2 != nullptr) + (a.bias2 != nullptr);
    const unsigned ring = shared_address(weights) + 4u * static_cast<unsigned>(arrays * a.cols) +
                          static_cast<unsigned>(group) * kStages * stage_bytes;
    const unsigned barrier = shared_address(barriers[group]);
    bring_weights<T>(weights, a);
    if (thread == 0) {
        for (int i = 0; i < kStages; ++i) barrier_init(barrier + 8 * i, 1);
        barriers_ready();
    }
    __syncwarp();
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();

    const int step = static_cast<int>(gridDim.x) * groups;
    const auto bring = [&](int row, int stage) {
        const std::size_t first = static_cast<std::size_t>(row) * row_bytes;
        const unsigned to = ring + stage * stage_bytes, there = barrier + 8 * stage;
        barrier_expect(there, stage_bytes);
        copy_bulk(to, static_cast<const std::byte*>(a.x) + first, row_bytes, there);
        if constexpr (kResidual) {
            copy_bulk(to + row_bytes, static_cast<const std::byte*>(a.residual) + first, row_bytes,
                      there);
        }
    };
    const int first_row = static_cast<int>(blockIdx.x) * groups + group;
    if (thread == 0) {
        for (int i = 0; i < kStages; ++i) {
            if (first_row + i * step < a.rows) bring(first_row + i * step, i);
        }
    }
    wait_for_copies();
    __syncthreads();  // weights and barriers are ready
    const int mine = L::mine(a.cols, thread);
    const int array = a.cols / kRowChunk;  // float4s per array
    const float4* b = a.bias ? weights + array : nullptr;
    const float4* w2 = weights + (a.bias ? 2 : 1) * array;
    int stage = 0;
    unsigned parity = 0;
    for (int row = first_row; row < a.rows; row += step) {
        const auto first = static_cast<std::size_t>(row) * static_cast<std::size_t>(a.cols);
        barrier_wait(barrier + 8 * stage, parity);
        typename L::Row s;
        take_row<L, T, kResidual>(s, a, ring + stage * stage_bytes, first, thread, mine);
        L::sync(group);  // all have read it, and the previous row's sums
        if (thread == 0 && row + kStages * step < a.rows) bring(row + kStages * step, stage);
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
        const RowStats stats = row_stats<L::kThreads, L::kChunks, kEach>(
            a.kind, s, a.cols, a.eps, thread, space + group * kSpace,
            WarpsTeam<L::kThreads>{group * L::kThreads, 1 + group});
        put_row<L>(static_cast<T*>(a.out) + first, s, stats, weights, b, a.cols, thread, mine);
        if (!a.out2) continue;
        put_row<L>(static_cast<T*>(a.out2) + first, s, stats, w2, a.bias2 ? w2 + array : nullptr,
                   a.cols, thread, mine);
    }
}

template <typename L, typename T, bool kResidual>
bool start(const Context& ctx, const NormArgs& a) {
    const auto kernel = norm_bulk<L, T, kResidual>;
    static const cudaFuncAttributes compiled = [&] {
        cudaFuncAttributes attributes{};
        MR_CUDA_CALL(cudaFuncGetAttributes(&attributes, kernel));
        return attributes;
    }();
    if (this_gpu().sm < 90) return false;

    const int arrays = 1 + (a.bias != nullptr) + (a.weight2 != nullptr) + (a.bias2 != nullptr);
    const auto cols = static_cast<std::size_t>(a.cols);
    const std::size_t stage = (kResidual ? 2 : 1) * cols * sizeof(T);
    const auto shared = [&](int threads) {
        return sizeof(float) * static_cast<std::size_t>(arrays) * cols +
               static_cast<std::size_t>(threads / L::kThreads * kStages) * stage;
    };
    const std::size_t most = this_gpu().shared_per_block;
    // Blocks of `threads` that a multiprocessor holds; the system reserves 1 KB for each.
    const auto held = [&](int threads) {
        const std::size_t block = shared(threads) + compiled.sharedSizeBytes;
        return block > most ? 0 : static_cast<int>((most + 1024) / (block + 1024));
    };
    // Two blocks of four warps. If these do not fit, one block of eight, which holds the weights
    // once.
    int threads = kMostThreads / 2, blocks = std::min(2, held(threads));
    if (blocks == 0) return false;
    if (blocks == 1 && held(kMostThreads) > 0) threads = kMostThreads;
    const int groups = threads / L::kThreads;
    const int grid = std::min((a.rows + groups - 1) / groups, blocks * this_gpu().multiprocessors);
    allow_shared(kernel, shared(threads));
    launch(ctx, dim3(static_cast<unsigned>(grid)), dim3(static_cast<unsigned>(threads)),
           shared(threads), kernel, a);
    return true;
}

template <typename L, typename T>
bool start_for(const Context& ctx, const NormArgs& a) {
    return a.residual ? start<L, T, true>(ctx, a) : start<L, T, false>(ctx, a);
}

template <typename T>
bool start_with(const Context& ctx, const NormArgs& a) {
    using Warp = Layout<32, 80>;
    using TwoWarps = Layout<64, 80>;
    using FourWarps = Layout<128, 64>;
    if (a.cols <= Warp::kMostCols) return start_for<Warp, T>(ctx, a);
    if (a.cols <= TwoWarps::kMostCols) return start_for<TwoWarps, T>(ctx, a);
    return a.cols <= FourWarps::kMostCols && start_for<FourWarps, T>(ctx, a);
}

}  // namespace

bool norm_takes_weights_like_rows(DType type, std::int64_t rows, std::int64_t cols) {
    using Widest = Layout<128, 64>;
    return (type == DType::f16 || type == DType::bf16) && rows >= kFewestRows &&
           rows <= std::numeric_limits<int>::max() && cols >= kFewestCols &&
           cols <= Widest::kMostCols && cols % kWide == 0 && this_gpu().sm >= 90;
}

bool start_norm_many(const Context& ctx, const NormArgs& a, DType x, DType residual, DType out) {
    if (x == DType::f32 && out == DType::bf16) return start_norm_many_f32(ctx, a);
    if (x != residual || x != out || a.rows < kFewestRows) return false;
    if (a.cols < kFewestCols || a.cols % kWide != 0) return false;
    if (x == DType::f16) return start_with<__half>(ctx, a);
    return x == DType::bf16 && start_with<bf16>(ctx, a);
}

}  // namespace mr::cuda
