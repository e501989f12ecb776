#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/cuda/kernel.cuh"
#include "observe/matrix_peak.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MR_WARP_GROUPS 1
#endif

namespace mr::observe {
namespace {

constexpr int kGroups = 2;  // warp groups (4 warps) of a block
constexpr int kMatrixPeakThreads = 128 * kGroups;
constexpr double kFlopsPerRound = 1 << 20;  // per warp group, on every architecture

// Two bf16 (or f16), magnitude 1 to 2, random sign: realistic data draws realistic power.
__device__ std::uint32_t some_pair(std::uint32_t seed) {
    seed = seed * 747796405u + 2891336453u;
    seed = ((seed >> ((seed >> 28) + 4)) ^ seed) * 277803737u;
    return (seed & 0x807f807fu) | 0x3f803f80u;
}

#ifdef MR_WARP_GROUPS

// Four tiles of A [64, 16] and of B [128, 16] for the block. The layout does not matter here: any
// values do.
constexpr int kTiles = 4;
constexpr int kTileA = 64 * 16, kTileB = 128 * 16;

// Core matrices of 8 rows x 16 bytes, 128 bytes apart along k and 256 along the rows; no swizzle.
__device__ std::uint64_t descriptor(const std::uint16_t* tile) {
    const std::uint64_t address = __cvta_generic_to_shared(tile);
    return ((address & 0x3ffff) >> 4) | (std::uint64_t{128 >> 4} << 16) |
           (std::uint64_t{256 >> 4} << 32);
}

// d [64, 128] += A [64, 16] B [128, 16]^T
__device__ __forceinline__ void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63])
        : "l"(a), "l"(b));
}

#elif defined(__CUDA_ARCH__)

// d [16, 8] += A [16, 16] B [16, 8]
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // older: f16 and half the depth, so two instructions
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
    }
#endif
}

#endif

// Every warp group does `rounds` of kFlopsPerRound. `out` keeps the compiler from removing them.
__global__ void __launch_bounds__(kMatrixPeakThreads) multiply_rounds(int rounds, float* out) {
    float sum = 0;
#ifdef MR_WARP_GROUPS
    __shared__ __align__(128) std::uint16_t a[kTiles * kTileA];
    __shared__ __align__(128) std::uint16_t b[kTiles * kTileB];
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * kTileA / 2; i += kMatrixPeakThreads) {
        reinterpret_cast<std::uint32_t*>(a)[i] = some_pair(static_cast<std::uint32_t>(i));
    }
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * kTileB / 2; i += kMatrixPeakThreads) {
        reinterpret_cast<std::uint32_t*>(b)[i] = some_pair(static_cast<std::uint32_t>(~i));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[64] = {};
    for (int round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            multiply(d, descriptor(a + tile * kTileA), descriptor(b + tile * kTileB));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) sum += d[i];
#elif defined(__CUDA_ARCH__)
    constexpr int kChains = 8;  // independent accumulators, to hide latency
    std::uint32_t a[2][4], b[kChains][2];
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = some_pair(threadIdx.x * 8 + i);
    for (int i = 0; i < 2 * kChains; ++i) b[i / 2][i % 2] = some_pair(~(threadIdx.x * 16 + i));
    float d[kChains][4] = {};
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int chain = 0; chain < kChains; ++chain) multiply(d[chain], a[i % 2], b[chain]);
        }
    }
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
        sum += d[chain][0] + d[chain][1] + d[chain][2] + d[chain][3];
    }
#endif
    if (sum == 0.125f) *out = sum;
}

}  // namespace

double measure_matrix_peak(const cuda::Stream& stream, int multiprocessors) {
    constexpr int kRounds = 4096;  // about 5 ms
    cuda::DeviceArena memory("the matrix measurement", sizeof(float));
    auto* out = memory.array<float>(1);
    double best = std::numeric_limits<double>::infinity();
    const auto grid = static_cast<unsigned>(2 * multiprocessors);
    for (int pass = 0; pass < 4; ++pass) {
        const cuda::Event begin(true), end(true);
        stream.record(begin);
        multiply_rounds<<<grid, kMatrixPeakThreads, 0, stream.raw()>>>(kRounds, out);
        MR_CUDA_CALL(cudaGetLastError());
        stream.record(end);
        end.synchronize();
        if (pass > 0) best = std::min(best, end.seconds_since(begin));
    }
    return static_cast<double>(grid) * kGroups * kRounds * kFlopsPerRound / best;
}

}  // namespace mr::observe
