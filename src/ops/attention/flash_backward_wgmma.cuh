// The backward in one pass on Hopper: a block has a tile of 128 keys and their values, and walks
// along the tiles of queries that see it. docs/attention.md, "Backward", has the formulas; here all
// tiles of scores are transposed, keys by queries:
//   S = K Qᵀ        P = exp2(S * scale * log2(e) - lse2)
//   dP = V dOᵀ      dS = P * (dP - delta)
//   dV += P dO      dK += dS Q           the block's own, in registers until the end
//   dQ  = dSᵀ K                          added to a sum in memory, in turns
//   (flash_backward_order.h)
//
// Two warp groups compute, 64 keys each; P and dS go from accumulators into the next product as
// they are. Only dQ, a sum over all 128 keys, needs the dS of both: through shared memory, where it
// is stored transposed. Of the third warp group one warp loads (TMA), and two add the tiles of dQ
// to memory (bulk reductions). The products of a step are started so that the tensor cores have
// something to do while the threads compute: dP while they compute exponentials, S of the next step
// while they take dQ of this one out.
#pragma once

#include "core/cuda/mma.cuh"
#include "core/cuda/tensor_map.h"
#include "core/cuda/wgmma.cuh"
#include "ops/attention/flash_backward_walk.cuh"

namespace mr::cuda::flash {

// Zeros in rows [from, rows) of panels of shared memory: rows of another sequence or of nobody,
// where anything may lie, and 0 * NaN is not 0.
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

// A warp group that computes. Little is kept in registers besides the sums: there is no room.
template <typename T, int kDim, int kRows>
__device__ __forceinline__ void backward_compute(const BackwardArgs& args, const Sequence& seq,
                                                 int kv_head, int key0, int steps, unsigned base,
                                                 const BackwardBarriers& barriers, int group) {
    using L = BackwardLayout<kDim, kRows>;
    using Tile = DqTile<kDim, kRows>;
    constexpr int kBlocks = kRows / 8;  // of eight queries
    constexpr int kDqWidth = Tile::kFirstWidth;
    // dV is started before dP has come: its weights have to be packed for that, so the exponentials
    // cannot be put off until then. At head size 64 there are too many of them for the registers.
    constexpr bool kEarly = kDim > 64;
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;

    float dk[kDim / 2], dv[kDim / 2];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) dk[i] = dv[i] = 0;
    float s[kRows / 2], dp[kRows / 2];

    const unsigned k_rows = base + L::kK + group * 64 * 128,
                   v_rows = base + L::kV + group * 64 * 128;
    // s = K Qᵀ or dp = V dOᵀ
    const auto start_scores = [&](float(&d)[kRows / 2], unsigned a, unsigned b) {
        const std::uint64_t from_a = rows_descriptor(a), from_b = rows_descriptor(b);
        forget(d);
        multiply_begin();
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) {
            multiply<T>(d, further(from_a, k / 4 * L::kKeyPanel + k % 4 * 32),
                        further(from_b, k / 4 * L::kRowPanel + k % 4 * 32), k > 0);
        }
    };
    // dv += P dO or dk += dS Q
    const auto start_sums = [&](float(&d)[kDim / 2], const std::uint32_t(&a)[kRows / 16][4],
                                unsigned b) {
        const std::uint64_t from_b = columns_descriptor(b, L::kRowPanel);
        multiply_begin();
#pragma unroll
        for (int k = 0; k < kRows / 16; ++k) multiply<T, 1>(d, a[k], further(from_b, k * 2048), 1);
    };
    // Rows beyond the sequence's end in the tile of a stage.
    const auto clear_stage = [&](int stage) {
        const int what = read_word(base + L::kSteps + stage * 4);
        if (!(what & kShort)) return;
        const int rows = seq.queries - what / 4 * kRows, at = 128 * group + thread;
        clear_rows<L::kPanels>(base + L::kQ + stage * L::kRowTile, L::kRowPanel, rows, kRows, at,
                               256);
        clear_rows<L::kPanels>(base + L::kDo + stage * L::kRowTile, L::kRowPanel, rows, kRows, at,
                               256);
        stores_before_products();
        meet<1, 256>();
    };

    // The last step is code of its own: where products are in flight the compiler wants no branch.
    const auto take_step = [&](int i, auto more_steps) {
        constexpr bool more = decltype(more_steps)::value;
        const int stage = i & 1;
        const unsigned q_at = base + L::kQ + stage * L::kRowTile;
        const unsigned do_at = base + L::kDo + stage * L::kRowTile;
        const unsigned ds_at = base + L::kDs + stage * L::kDsTile;

        barrier_wait(barriers.do_full(stage), (i >> 1) & 1);
        clear_stage(stage);
        multiply_wait<0>();
        keep_order(s);
        start_scores(dp, v_rows, do_at);
        multiply_commit();
        if (const int what = read_word(base + L::kSteps + stage * 4); what & kMasked) {
            const Mask& mask = args.p.mask;
            const int key = key0 + 64 * group + 16 * warp + lane / 4;
            const int beyond = mask.kind == Mask::Kind::full ? Mask::kNever : 1;
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int query = what / 4 * kRows + 8 * n + 2 * (lane % 4) + e;
                    const int position = seq.position(query);
                    int hi = min(position + beyond, seq.keys);
                    if (mask.kind == Mask::Kind::block_causal) hi = mask.hi(position, seq.keys);
                    if (query >= seq.queries) hi = 0;
                    const int lo = position - mask.window + 1;
                    const auto hide = [&](float& x, int j) {
                        if (j >= hi || (j < lo && j >= mask.sinks)) x = -__int_as_float(0x7f800000);
                    };
                    hide(s[4 * n + e], key);
                    hide(s[4 * n + 2 + e], key + 8);
                }
            }
        }
        const float scale2 = args.p.scale * 1.4426950408889634f;
        std::uint32_t p16[kRows / 16][4], ds16[kRows / 16][4];
        const unsigned lse_at = base + L::kLse + stage * kRows * 4 + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const float2 lse = read_pair(lse_at + n * 32);
            s[4 * n] = exp2_fast(fmaf(s[4 * n], scale2, -lse.x));
            s[4 * n + 1] = exp2_fast(fmaf(s[4 * n + 1], scale2, -lse.y));
            s[4 * n + 2] = exp2_fast(fmaf(s[4 * n + 2], scale2, -lse.x));
            s[4 * n + 3] = exp2_fast(fmaf(s[4 * n + 3], scale2, -lse.y));
        }
        const auto pack_p = [&](int n) {
            p16[n / 2][n % 2 * 2] = pack<T>(s[4 * n], s[4 * n + 1]);
            p16[n / 2][n % 2 * 2 + 1] = pack<T>(s[4 * n + 2], s[4 * n + 3]);
        };
        if constexpr (kEarly) {
#pragma unroll
            for (int n = 0; n < kBlocks; ++n) pack_p(n);
            start_sums(dv, p16, do_at);
            multiply_commit();
            multiply_wait<1>();
        } else {
            multiply_wait<0>();
        }
        keep_order(dp);
        const unsigned delta_at = base + L::kDelta + stage * kRows * 4 + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const float2 delta = read_pair(delta_at + n * 32);
            if (!kEarly) pack_p(n);
            ds16[n / 2][n % 2 * 2] =
                pack<T>(s[4 * n] * (dp[4 * n] - delta.x), s[4 * n + 1] * (dp[4 * n + 1] - delta.y));
            ds16[n / 2][n % 2 * 2 + 1] = pack<T>(s[4 * n + 2] * (dp[4 * n + 2] - delta.x),
                                                 s[4 * n + 3] * (dp[4 * n + 3] - delta.y));
        }
        if constexpr (!kEarly) {
            start_sums(dv, p16, do_at);
            multiply_commit();
        }
        // Matrices of 8 keys by 8 queries, stored as 8 queries by 8 keys: lane l names row l % 8 of
        // matrix l / 8.
        {
            const unsigned at = ds_at + group * L::kDsPanel + (lane / 16 * 8 + lane % 8) * 128 +
                                (((2 * warp + lane / 8 % 2) ^ (lane % 8)) << 4);
#pragma unroll
            for (int n = 0; n < kRows / 16; ++n) store_transposed(at + n * 2048, ds16[n]);
        }
        start_sums(dk, ds16, q_at);
        multiply_commit();
        stores_before_products();
        meet<1, 256>();

        float dq[kDqWidth / 2];
        {
            const std::uint64_t a = rows_descriptor(ds_at + (Tile::kByRows ? group * 64 * 128 : 0));
            const std::uint64_t b = columns_descriptor(base + L::kK +
                                                           (Tile::kByRows    ? 0
                                                            : kDqWidth == 64 ? group * L::kKeyPanel
                                                                             : group * 64),
                                                       L::kKeyPanel);
            forget(dq);
            multiply_begin();
#pragma unroll
            for (int k = 0; k < L::kKeys / 16; ++k) {
                multiply<T, 0, 1>(dq, further(a, k / 4 * L::kDsPanel + k % 4 * 32),
                                  further(b, k * 2048), k > 0);
            }
            multiply_commit();
        }
        multiply_wait<1>();  // dV and dK are there
        if (lane == 0) barrier_arrive(barriers.do_empty(stage));
        if (lane == 0) barrier_arrive(barriers.q_empty(stage));
        if constexpr (more) {
            const int next = stage ^ 1;
            barrier_wait(barriers.q_full(next), ((i + 1) >> 1) & 1);
            start_scores(s, k_rows, base + L::kQ + next * L::kRowTile);
            multiply_commit();
        }

        multiply_wait<more ? 1 : 0>();  // dQ is there
        keep_order(dq);
        barrier_wait(barriers.dq_empty(stage), ((i >> 1) & 1) ^ 1);
        {
            const unsigned at =
                base + L::kDq + stage * L::kDqTile + Tile::begin(group) * 4 + thread * 16;
#pragma unroll
            for (int n = 0; n < kDqWidth / 8; ++n) {
                if (Tile::width(0) == Tile::width(1) || 8 * n < Tile::width(group)) {
                    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + n * 2048),
                                 "f"(dq[4 * n]), "f"(dq[4 * n + 1]), "f"(dq[4 * n + 2]),
                                 "f"(dq[4 * n + 3])
                                 : "memory");
                }
            }
        }
        stores_before_products();
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.dq_full(stage, group));
    };
    if (steps > 0) {
        barrier_wait(barriers.k_full(), 0);
        if (const int rows = seq.keys - key0; rows < L::kKeys) {
            barrier_wait(barriers.v_full(), 0);
            const int at = 128 * group + thread;
            clear_rows<L::kPanels>(base + L::kK, L::kKeyPanel, rows, L::kKeys, at, 256);
            clear_rows<L::kPanels>(base + L::kV, L::kKeyPanel, rows, L::kKeys, at, 256);
            stores_before_products();
            meet<1, 256>();
        }
        barrier_wait(barriers.q_full(0), 0);
        start_scores(s, k_rows, base + L::kQ);
        multiply_commit();
        barrier_wait(barriers.v_full(), 0);
        for (int i = 0; i + 1 < steps; ++i) take_step(i, std::true_type{});
        take_step(steps - 1, std::false_type{});
        multiply_wait<0>();
        keep_order(dk);
        keep_order(dv);
    }

    // Out through the shared memory of K and V, which nobody reads any more, so that rows are
    // written in whole lines.
    meet<1, 256>();
    const auto stage_out = [&](const float(&d)[kDim / 2], unsigned to, float factor) {
#pragma unroll
        for (int n = 0; n < kDim / 16; ++n) {
            std::uint32_t m[4];
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                m[h] = pack<T>(d[8 * n + 2 * h] * factor, d[8 * n + 2 * h + 1] * factor);
            }
            const int row = 16 * warp + lane / 8 % 2 * 8 + lane % 8, chunk = 2 * n + lane / 16;
            store_matrices(
                to + chunk / 8 * L::kKeyPanel + row * 128 + (((chunk % 8) ^ (lane % 8)) << 4), m);
        }
    };
    stage_out(dv, v_rows, 1.0f);
    stage_out(dk, k_rows, args.p.scale);
    if (group == 0) {
        meet<2, 128>();
    } else {
        meet<3, 128>();
    }
    constexpr int kChunks = kDim / 8;
    for (int i = thread; i < 64 * kChunks; i += 128) {
        const int row = i / kChunks, chunk = i % kChunks, key = key0 + 64 * group + row;
        if (key >= seq.keys) break;
        if (8 * chunk >= args.p.head_dim) continue;
        const unsigned at = chunk / 8 * L::kKeyPanel + row * 128 + (((chunk % 8) ^ (row % 8)) << 4);
        const auto copy = [&](unsigned from, const View& to) {
            uint4 v;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(from + at)
                         : "memory");
            *reinterpret_cast<uint4*>(to.row<T>(seq.k + key, kv_head, args.p.head_dim) +
                                      8 * chunk) = v;
        };
        copy(v_rows, args.views.dv);
        copy(k_rows, args.views.dk);
    }
}

template <typename T, int kDim, int kRows>
__global__ void __launch_bounds__(384, 1)
    flash_backward_kernel(const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map,
                          const __grid_constant__ CUtensorMap do_map,
                          const __grid_constant__ BackwardArgs args) {
    using L = BackwardLayout<kDim, kRows>;
    extern __shared__ __align__(1024) std::byte shared[];
    const unsigned base = shared_address(shared);
    const BackwardBarriers barriers{base + L::kBarriers};
    if (threadIdx.x == 0) {
        prefetch_map(q_map);
        prefetch_map(k_map);
        prefetch_map(v_map);
        prefetch_map(do_map);
        barrier_init(barriers.k_full(), 1);
        barrier_init(barriers.v_full(), 1);
        for (int i = 0; i < 2; ++i) {
            barrier_init(barriers.q_full(i), 1);
            barrier_init(barriers.do_full(i), 1);
            barrier_init(barriers.q_empty(i), 8);  // a thread of every computing warp
            barrier_init(barriers.do_empty(i), 8);
            barrier_init(barriers.dq_full(i, 0), 4);
            barrier_init(barriers.dq_full(i, 1), 4);
            barrier_init(barriers.dq_empty(i), 1);
        }
        barriers_ready();
    }
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    if (threadIdx.x == 0) {
        const unsigned n = atomicAdd(args.tickets, 1u);
        // More tickets than blocks: tickets were not put back, and nobody's turn would come.
        if (n >= gridDim.x) __trap();
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(barriers.work()), "r"(n) : "memory");
    }
    __syncthreads();
    unsigned ticket;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(ticket) : "r"(barriers.work()) : "memory");
    const BackwardWork work = args.order.at(ticket);
    const Sequence s = args.p.sequence(work.pair / args.p.kv_heads);
    if (work.key_tile * L::kKeys >= s.keys) return;
    // Told to be the same for the whole warp, which products ask for.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == 0) {
        give_registers<kLoadRegisters>();
        if (threadIdx.x == 0) {
            const BackwardWalk<kRows> walk(args, work, s);
            backward_load<kDim, kRows>(q_map, k_map, v_map, do_map, args, walk, base, barriers);
        }
        if (threadIdx.x == 32 || threadIdx.x == 64) {
            const BackwardWalk<kRows> walk(args, work, s);
            backward_add<kDim, kRows>(args, walk, base, barriers,
                                      static_cast<int>(threadIdx.x) / 64);
        }
    } else {
        take_registers<kComputeRegisters>();
        const int steps = __shfl_sync(~0u, BackwardWalk<kRows>(args, work, s).steps, 0);
        backward_compute<T, kDim, kRows>(args, s, work.pair % args.p.kv_heads,
                                         work.key_tile * L::kKeys, steps, base, barriers,
                                         group - 1);
    }
}

// Starts it for the tensors of a problem.
template <typename T, int kDim>
void start_backward(const Context& ctx, const BackwardArgs& args) {
    constexpr int kRows = backward_rows(kDim);
    using L = BackwardLayout<kDim, kRows>;
    const Problem& p = args.p;
    // Where there is no query nobody reads q and dout, but a map is of something.
    const bool none = p.tokens_q == 0;
    const auto map = [&](const View& x, bool queries) {
        return head_rows_map(x.data, p.dtype, queries ? p.tokens_q : p.tokens_k,
                             queries ? p.heads : p.kv_heads, p.head_dim, x.stride,
                             queries ? kRows : kBackwardKeys);
    };
    auto* kernel = flash_backward_kernel<T, kDim, kRows>;
    allow_shared(kernel, L::kBytes);
    launch(ctx, dim3(static_cast<unsigned>(args.order.blocks())), dim3(384), L::kBytes, kernel,
           none ? map(p.k, false) : map(p.q, true), map(p.k, false), map(p.v, false),
           none ? map(p.k, false) : map(args.views.dout, true), args);
}

}  // namespace mr::cuda::flash
