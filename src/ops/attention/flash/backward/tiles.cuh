// The work of the computing warps of the one-pass backward besides products: they clear missing
// rows, apply masks, and write dq where it is complete. Threads 128 and on of a block compute.
#pragma once

#include "core/cuda/mma.cuh"
#include "ops/attention/flash/backward/walk.cuh"
#include "ops/attention/flash/quad.cuh"

namespace mr::cuda::flash {

// Writes zeros to rows [from, rows) of panels of shared memory. These rows belong to another
// sequence or to none and may hold anything, and 0 * NaN is not 0.
template <int kPanels>
__device__ __forceinline__ void clear_rows(unsigned at, int panel_bytes, int from, int rows,
                                           int thread, int threads) {
    for (int i = thread; i < kPanels * (rows - from) * 8; i += threads) {
        const int panel = i / ((rows - from) * 8), rest = i % ((rows - from) * 8);
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + panel * panel_bytes +
                                                                      from * 128 + rest * 16),
                     "r"(0)
                     : "memory");
    }
}

// Scores that queries do not see become -infinity. s: keys from `key0` on by the queries of a step,
// transposed, as wgmma leaves it; `what` is the loading warp's description of the step.
template <int kRows>
__device__ __forceinline__ void hide_scores(float (&s)[kRows / 2], const Mask& mask,
                                            const Sequence& seq, int what, int key0) {
    constexpr float kInfinity = __builtin_huge_valf();
    const int at = thread_here() - 128;
    const int key = key0 + at / 32 * 16 + at % 32 / 4,
              query0 = what / kKinds * kRows + 2 * (at % 4);
    if (what & kDiagonal) {
        const int ahead = key - seq.position(query0);
#pragma unroll
        for (int b = 0; b < kRows / 8; ++b) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (ahead > 8 * b + e) s[4 * b + e] = -kInfinity;
                if (ahead + 8 > 8 * b + e) s[4 * b + 2 + e] = -kInfinity;
            }
        }
        return;
    }
    const ScoreBounds bounds(mask);
#pragma unroll
    for (int b = 0; b < kRows / 8; ++b) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int query = query0 + 8 * b + e, position = seq.position(query);
            int hi = bounds.hi(position, seq.keys);
            if (query >= seq.queries) hi = 0;
            const int lo = bounds.lo(position);
            const auto hide = [&](float& x, int j) {
                if (j >= hi || (j < lo && j >= mask.sinks)) x = -kInfinity;
            };
            hide(s[4 * b + e], key);
            hide(s[4 * b + 2 + e], key + 8);
        }
    }
}

// Adds the sums so far to dq of this step. Denormal numbers count as zero, as in additions in
// memory, so the bits are the same.
template <int kCount>
__device__ __forceinline__ void add_sums(float (&dq)[kCount], unsigned at) {
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
        float x[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(at + n * 2048)
                     : "memory");
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            asm("add.rn.ftz.f32 %0, %1, %0;" : "+f"(dq[4 * n + e]) : "f"(x[e]));
        }
    }
}
// Writes a warp group's rows of the complete dq to the tensor; 128 rows per tile.
template <typename T, int kDim, int kCount>
__device__ __forceinline__ void write_dq(const BackwardArgs& args, const DqStep& step,
                                         const Sequence& seq, const float (&dq)[kCount]) {
    const int at = thread_here() - 128, c = at % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int query = step.tile * 128 + at / 32 * 16 + at % 32 / 4 + 8 * h;
        T* to = args.views.dq.row<T>(seq.q + query, step.head, args.p.head_dim);
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) {
            std::uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int from = 4 * (4 * i + j) + 2 * h;
                words[j] = pack<T>(dq[from] * args.p.scale, dq[from + 1] * args.p.scale);
            }
            const uint4 piece = gather_quad(words, c);
            const int d = 32 * i + 8 * c;
            if (query < seq.queries && d < args.p.head_dim) {
                *reinterpret_cast<uint4*>(to + d) = piece;
            }
        }
    }
}

}  // namespace mr::cuda::flash
