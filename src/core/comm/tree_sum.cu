#include <algorithm>

#include "core/comm/device_link.h"
#include "core/cuda/check.h"
#include "core/cuda/kernel.cuh"

namespace mr::comm {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The tree over ranks [first, first + kRanks).
template <int kRanks, typename T, typename Part>
__device__ __forceinline__ T tree(const Part& part, int first) {
    if constexpr (kRanks == 1) {
        return part(first);
    } else {
        const T left = tree<kRanks / 2, T>(part, first);
        return added(left, tree<kRanks / 2, T>(part, first + kRanks / 2));
    }
}

// For more ranks than the unrolled tree takes: groups of kUnrolled ranks, and a tree over the
// groups. levels[i] holds the sum of 2^i groups until the next 2^i groups are summed.
constexpr int kUnrolled = 64;
constexpr int kLevels = 7;
static_assert(kUnrolled << (kLevels - 1) == kMostDeviceRanks);

template <int kRanks, typename T, typename Part>
__device__ __forceinline__ T tree_of(const Part& part, int ranks) {
    T sum = tree<kRanks, T>(part, 0);
    if constexpr (kRanks == kUnrolled) {
        T levels[kLevels];
        for (int group = 0;;) {
            int level = 0;
            for (; group >> level & 1; ++level) sum = added(levels[level], sum);
            levels[level] = sum;
            if (++group * kUnrolled == ranks) break;
            sum = tree<kUnrolled, T>(part, group * kUnrolled);
        }
    }
    return sum;
}

// The pieces of one launch, and the first block of each.
constexpr int kPieces = 16;
struct Pieces {
    SumPiece piece[kPieces];
    unsigned first[kPieces + 1];
    int count;
};

// Elements per thread. Few, so that these small blocks fit into the gaps that GEMMs leave at their
// ends: a GEMM whose blocks all run at once must wait for the last busy multiprocessor.
constexpr int kEach = 8;
constexpr std::int64_t kBlock = kThreads * kEach;

template <int kRanks, typename T>
__device__ __forceinline__ void sum_block(const SumPiece& p, std::int64_t begin, int rank,
                                          int ranks) {
    constexpr int kWide = sizeof(T) / sizeof(float);
    T* const own = reinterpret_cast<T*>(p.own);
    T* const packed = reinterpret_cast<T*>(p.packed);
    const T* const parts = reinterpret_cast<const T*>(p.parts);
    const std::int64_t count = p.count / kWide;
#pragma unroll
    for (int j = 0; j < kEach / kWide; ++j) {
        const std::int64_t i = begin / kWide + j * kThreads + threadIdx.x;
        if (i >= count) return;
        const T sum = tree_of<kRanks, T>(
            [&](int r) { return r == rank ? own[i] : parts[(r < rank ? r : r - 1) * count + i]; },
            ranks);
        own[i] = sum;
        if (packed) packed[i] = sum;
    }
}

template <int kRanks>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const __grid_constant__ Pieces all, int rank, int ranks) {
    int at = 0;
    while (blockIdx.x >= all.first[at + 1]) ++at;
    const SumPiece& p = all.piece[at];
    const std::int64_t begin = (blockIdx.x - all.first[at]) * kBlock;
    const auto bits =
        reinterpret_cast<std::uintptr_t>(p.own) | reinterpret_cast<std::uintptr_t>(p.parts) |
        reinterpret_cast<std::uintptr_t>(p.packed) | static_cast<std::uintptr_t>(p.count * 4);
    if (bits % 16 == 0) {
        sum_block<kRanks, float4>(p, begin, rank, ranks);
    } else {
        sum_block<kRanks, float>(p, begin, rank, ranks);
    }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    convert(To* __restrict__ to, const From* __restrict__ from, std::int64_t count) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += step) {
        to[i] = cuda::from_f32<To>(cuda::to_f32(from[i]));
    }
}

template <typename To, typename From>
void start_convert(const cuda::Stream& stream, To* to, const From* from, std::int64_t count) {
    if (count == 0) return;
    const std::int64_t most = 8 * cuda::this_gpu().multiprocessors;
    const std::int64_t blocks = std::min(most, (count + kThreads - 1) / kThreads);
    const auto kernel = convert<To, From>;
    cuda::prepare_kernel(reinterpret_cast<const void*>(kernel));
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream.raw()>>>(to, from, count);
    MR_CUDA_CALL(cudaGetLastError());
}

template <int kRanks>
void start_sum(const cuda::Stream& stream, const Pieces& pieces, int rank, int ranks) {
    if (ranks == kRanks || kRanks == kUnrolled) {
        const auto kernel = sum_parts<kRanks>;
        cuda::prepare_kernel(reinterpret_cast<const void*>(kernel));
        kernel<<<pieces.first[pieces.count], kThreads, 0, stream.raw()>>>(pieces, rank, ranks);
        MR_CUDA_CALL(cudaGetLastError());
    } else if constexpr (kRanks < kUnrolled) {
        start_sum<2 * kRanks>(stream, pieces, rank, ranks);
    }
}

}  // namespace

void tree_sum(const cuda::Stream& stream, std::span<const SumPiece> pieces, int rank, int ranks) {
    MR_CHECK(ranks > 1 && ranks <= kMostDeviceRanks && (ranks & (ranks - 1)) == 0,
             "ranks on GPUs are a power of two, 4,096 at most");
    Pieces some{};
    const auto flush = [&] {
        if (some.count > 0) start_sum<2>(stream, some, rank, ranks);
        some = {};
    };
    for (const SumPiece& piece : pieces) {
        if (piece.count == 0) continue;
        const auto blocks = static_cast<unsigned>((piece.count + kBlock - 1) / kBlock);
        some.piece[some.count] = piece;
        some.first[some.count + 1] = some.first[some.count] + blocks;
        if (++some.count == kPieces) flush();
    }
    flush();
}

void to_bf16(const cuda::Stream& stream, void* to, const float* from, std::int64_t count) {
    start_convert(stream, static_cast<cuda::bf16*>(to), from, count);
}
void to_f32(const cuda::Stream& stream, float* to, const void* from, std::int64_t count) {
    start_convert(stream, to, static_cast<const cuda::bf16*>(from), count);
}

}  // namespace mr::comm
