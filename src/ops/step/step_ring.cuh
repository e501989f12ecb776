// The ring buffer of a step: how the loading warps fill it with weights and how the multiplying
// warps read them.
//
// A stage is a tile of 16 rows by kWarps * each() granules of columns, each() for each multiplying
// warp; or of 8 rows and twice the columns, if that balances a product better. Granule i of a row
// belongs to warp i % kWarps, as in small_linear.cuh.
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

// A phase as the loading warps see it.
struct Source {
    const void* keys;    // attention: the layer's; products: null
    const std::byte* w;  // attention: the values
    int k, n, tiles, lower;
    int upper_step;  // rows from one tile's upper half to the next one's
    int first_block;
    bool half;  // tiles of 8 rows: the next columns in place of the lower half
};

// The layout of f16 and bf16: a row's part of a stage is contiguous, and rows are kPitch apart, so
// that the lanes of a load use different banks.
template <typename T>
struct HalfRing {
    using Weights = small::HalfWeights<T>;
    static constexpr bool kHalves = true;  // tiles of 8 rows are possible
    static constexpr int kRowBytes = kWarps * Weights::kGranule * 2;
    static constexpr int kPitch = kRowBytes + 64;
    static constexpr int kStageBytes = kTileRows * kPitch;

    static constexpr int kFetching = 128;  // threads
    // Arrivals at the barrier `full`. kMixed: the ring holds not only weights.
    template <bool kMixed>
    static constexpr int kArrivals = 128;

    static constexpr int kFlight = 4;  // the most stages in flight

    // Copies of 16 bytes: bulk copies of a row's kilobyte of a stage are slower. Thread 8 r + i
    // copies every eighth piece of row r.
    struct Fetch {
        const std::byte* from;
        int left;   // bytes left of a row
        int ahead;  // of these, the bytes before this thread's
        int step;
    };
    static __device__ __forceinline__ Fetch begin(const Source& s, int tile, int thread) {
        const int upper = tile * s.upper_step, r = thread / 8;
        const bool ahead = s.half && r >= 8;
        // Rows past the last one read the last one; their results are dropped.
        const int row = min(r < 8 ? upper + r : upper + (s.half ? 0 : s.lower) + r - 8, s.n - 1);
        const int at = thread % 8 * 16 + (ahead ? kRowBytes : 0);
        return {s.w + static_cast<std::int64_t>(row) * s.k * 2 + at, s.k * 2, at,
                s.half ? 2 * kRowBytes : kRowBytes};
    }
    template <bool kMixed>
    static __device__ __forceinline__ void stage(Fetch& f, unsigned to, unsigned full,
                                                 std::uint64_t, int thread) {
        to += thread / 8 * kPitch + thread % 8 * 16;
#pragma unroll
        for (int i = 0; i < kRowBytes / 128; ++i) {
            const bool valid = f.ahead + i * 128 < f.left;
            copy16(to + i * 128, f.from + (valid ? i * 128 : -f.ahead), valid);
        }
        barrier_arrive_after_copies(full);
        f.from += f.step;
        f.left -= f.step;
    }
    // Each of 128 threads calls it after its copy16() of a stage.
    static __device__ __forceinline__ void arrive_after_copies(unsigned full, int) {
        barrier_arrive_after_copies(full);
    }
    static __device__ __forceinline__ int each(bool half) { return half ? 2 : 1; }

    // A lane's operands of its warp's granules of a stage.
    template <bool kOne>
    struct Held {
        uint4 u[2], l[2], b[2];
        uint4 ahead[kOne ? 2 : 1];  // half: the input of the lower rows' columns
        // `count` granules of the stage, at most each(), every kWarps-th from `at` on.
        __device__ __forceinline__ void load(int, bool half, unsigned stage, int at, unsigned x,
                                             const float*, const float*, int lane) {
            const unsigned from =
                stage + lane / 4 * kPitch + lane % 4 * 16 + at * (Weights::kGranule * 2);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u[j] = small::load16(from + j * 64);
                l[j] = small::load16(from + 8 * kPitch + j * 64);
                b[j] = small::load16(x + j * 64);
                if constexpr (kOne) {
                    if (half) ahead[j] = small::load16(x + kWarps * Weights::kInputStep + j * 64);
                }
            }
        }
        __device__ __forceinline__ void multiply(int count, bool half, float (&acc)[4]) const {
            if (kOne && half) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    mma<T>(acc, u[j].x, 0, u[j].y, 0, b[j].x, b[j].y);
                    mma<T>(acc, u[j].z, 0, u[j].w, 0, b[j].z, b[j].w);
                }
                if (count == 1) return;
#pragma unroll
                for (int j = 0; j < (kOne ? 2 : 0); ++j) {
                    mma<T>(acc, l[j].x, 0, l[j].y, 0, ahead[j].x, ahead[j].y);
                    mma<T>(acc, l[j].z, 0, l[j].w, 0, ahead[j].z, ahead[j].w);
                }
                return;
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                mma<T>(acc, u[j].x, l[j].x, u[j].y, l[j].y, b[j].x, b[j].y);
                mma<T>(acc, u[j].z, l[j].z, u[j].w, l[j].w, b[j].z, b[j].w);
            }
        }
    };
};

// q8_0x8 and q4_0x8: the records of a half tile are contiguous in memory, so a stage takes two
// copies.
template <typename Layout>
struct QuantRing {
    using Weights = small::QuantWeights<Layout>;
    static constexpr bool kHalves = false;
    static constexpr int kEach = Layout::kRecords == 1 ? 2 : 1;  // 1 or 2
    static constexpr int kHalfBytes = kWarps * kEach * Weights::kHalf;
    static constexpr int kStageBytes = 2 * kHalfBytes;
    static constexpr int kFetching = 32;
    template <bool kMixed>
    static constexpr int kArrivals = kMixed ? 4 : 1;
    static constexpr int kFlight = 3;
    // Each of 128 threads calls it after its copy16() of a stage. Four arrivals are expected, one
    // from each warp; before that every thread adds one of its own, which arrives when its copies
    // are complete.
    static __device__ __forceinline__ void arrive_after_copies(unsigned full, int thread) {
        barrier_add_arrival_after_copies(full);
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(full);
    }
    static __device__ __forceinline__ int each(bool) { return kEach; }

    // Lanes 0 and 1 copy one half each.
    struct Fetch {
        const std::byte* from;
        int halves;
        int left;  // bytes left of a half
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
    template <bool kMixed>
    static __device__ __forceinline__ void stage(Fetch& f, unsigned to, unsigned full,
                                                 std::uint64_t policy, int lane) {
        const int bytes = min(f.left, kHalfBytes);
        if constexpr (kMixed) {
            // A last granule that is cut short must hold no NaN after its end.
            const int cut = bytes % Weights::kHalf, rest = cut ? (Weights::kHalf - cut) / 16 : 0;
            for (int i = lane; i < 2 * rest; i += 32) {
                const bool second = i >= rest;
                zero16(to + (second ? kHalfBytes : 0) + bytes + (second ? i - rest : i) * 16);
            }
            bulk_follows();
            __syncwarp();
            if (lane > 0 && lane < kArrivals<true>) barrier_arrive(full);
        }
        if (lane == 0) barrier_expect(full, bytes * f.halves);
        __syncwarp();
        if (f.from) {
            copy_bulk(to + lane * kHalfBytes, f.from, bytes, full, policy);
            f.from += bytes;
        }
        f.left -= bytes;
    }

    template <bool kOne>
    struct Held {
        typename Weights::template Record<kOne> record[kEach * Weights::kRecords];
        __device__ __forceinline__ void load(int count, bool, unsigned stage, int at, unsigned x,
                                             const float* scales_a, const float* scales_b,
                                             int lane) {
            stage += at * Weights::kHalf;
#pragma unroll
            for (int i = 0; i < kEach * Weights::kRecords; ++i) {
                if (i / Weights::kRecords >= count) break;
                const int n =
                    i / Weights::kRecords * kWarps * Weights::kRecords + i % Weights::kRecords;
                record[i].template load<kHalfBytes>(
                    stage + n * Weights::kRecord, x + n * Weights::kColumns,
                    scales_a + n * Weights::kBlocks, scales_b + n * Weights::kBlocks, lane);
            }
        }
        __device__ __forceinline__ void multiply(int count, bool, float (&acc)[4]) const {
#pragma unroll
            for (int i = 0; i < kEach * Weights::kRecords; ++i) {
                if (i / Weights::kRecords < count) record[i].multiply(acc);
            }
        }
    };
};

}  // namespace mr::cuda::step
