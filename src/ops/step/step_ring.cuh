// How weights pass through the ring of a step: what the warps that fetch ask for, and how the
// others find it.
//
// A stage is a tile of 16 rows by kWarps * kEach granules of columns: kEach for each of the warps
// that multiply. Granule i of a row belongs to warp i % kWarps, as in small_linear.cuh.
#pragma once

#include "core/cuda/bulk.cuh"
#include "core/cuda/copy.cuh"
#include "core/cuda/mma.cuh"
#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"

namespace mr::cuda::step {

using small::kTileRows;
using small::kWarps;
using small::Params;

// What the fetching warps need to know of a product.
struct Source {
    const std::byte* w;
    int k, n, tiles, lower;
    int upper_step;  // rows from one tile's upper half to the next one's
    int first_block;
};

// The layout of f16 and bf16: a row's piece of a stage lies together, rows kPitch apart, so that
// the lanes of a load meet different banks.
template <typename T>
struct HalfRing {
    using Weights = small::HalfWeights<T>;
    static constexpr int kEach = 1;
    static constexpr int kRowBytes = kWarps * kEach * Weights::kGranule * 2;
    static constexpr int kPitch = kRowBytes + 64;
    static constexpr int kStageBytes = kTileRows * kPitch;

    static constexpr int kFetching = 128, kArrivals = 128;  // threads; on the barrier `full`

    // Copies of 16 bytes: bulk copies of the kilobyte that a row has in a stage are slower. Thread
    // 8 r + i has every eighth piece of row r.
    struct Fetch {
        const std::byte* from;
        int left;  // bytes of a row
    };
    static __device__ __forceinline__ Fetch begin(const Source& s, int tile, int thread) {
        const int upper = tile * s.upper_step, r = thread / 8;
        // Rows past the last are read as the last; their results go nowhere.
        const int row = min(r < 8 ? upper + r : upper + s.lower + r - 8, s.n - 1);
        return {s.w + static_cast<std::int64_t>(row) * s.k * 2 + thread % 8 * 16, s.k * 2};
    }
    static __device__ __forceinline__ void stage(Fetch& f, unsigned to, unsigned full,
                                                 std::uint64_t, int thread) {
        const int at = thread % 8 * 16;
        to += thread / 8 * kPitch + at;
#pragma unroll
        for (int i = 0; i < kRowBytes / 128; ++i) {
            const bool valid = at + i * 128 < f.left;
            copy16(to + i * 128, f.from + (valid ? i * 128 : 0), valid);
        }
        barrier_arrive_after_copies(full);
        f.from += kRowBytes;
        f.left -= kRowBytes;
    }

    // acc += kCount granules of the stage, every kWarps-th from `at` on.
    template <int kCount, bool kOne>
    static __device__ __forceinline__ void multiply(float (&acc)[4], unsigned stage, int at,
                                                    unsigned x, const float*, const float*,
                                                    int lane) {
        static_assert(kCount == 1);
        const unsigned from =
            stage + lane / 4 * kPitch + lane % 4 * 16 + at * (Weights::kGranule * 2);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 u = small::load16(from + j * 64);
            const uint4 l = small::load16(from + 8 * kPitch + j * 64);
            const uint4 b = small::load16(x + j * 64);
            mma<T>(acc, u.x, l.x, u.y, l.y, b.x, b.y);
            mma<T>(acc, u.z, l.z, u.w, l.w, b.z, b.w);
        }
    }
};

// q8_0x8 and q4_0x8: a half tile's records lie together in memory, so a stage is two copies.
template <typename Layout>
struct QuantRing {
    using Weights = small::QuantWeights<Layout>;
    static constexpr int kEach = Layout::kRecords == 1 ? 2 : 1;  // 1 or 2
    static constexpr int kHalfBytes = kWarps * kEach * Weights::kHalf;
    static constexpr int kStageBytes = 2 * kHalfBytes;
    static constexpr int kFetching = 32, kArrivals = 1;

    // Lanes 0 and 1 have the halves.
    struct Fetch {
        const std::byte* from;
        int halves;
        int left;  // bytes of a half
    };
    static __device__ __forceinline__ Fetch begin(const Source& s, int tile, int lane) {
        const int upper = tile * s.upper_step;
        const int row = lane == 0 ? upper : upper + s.lower;
        const bool there = lane < 2 && row < s.n;
        const unsigned all = __ballot_sync(~0u, there);
        const int bytes = (s.k + Weights::kColumns - 1) / Weights::kColumns * Weights::kRecord;
        return {there ? s.w + static_cast<std::int64_t>(row / 8) * bytes : nullptr, __popc(all),
                bytes};
    }
    static __device__ __forceinline__ void stage(Fetch& f, unsigned to, unsigned full,
                                                 std::uint64_t policy, int lane) {
        const int bytes = min(f.left, kHalfBytes);
        if (lane == 0) barrier_expect(full, bytes * f.halves);
        __syncwarp();
        if (f.from) {
            copy_bulk(to + lane * kHalfBytes, f.from, bytes, full, policy);
            f.from += bytes;
        }
        f.left -= bytes;
    }

    template <int kCount, bool kOne>
    static __device__ __forceinline__ void multiply(float (&acc)[4], unsigned stage, int at,
                                                    unsigned x, const float* scales_a,
                                                    const float* scales_b, int lane) {
        Weights::template multiply<kOne, kCount, kWarps, kHalfBytes>(
            acc, stage + at * Weights::kHalf, x, scales_a, scales_b, lane);
    }
};

}  // namespace mr::cuda::step
