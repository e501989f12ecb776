// The backward in one pass on Hopper: a block has a tile of 128 keys and their values, and walks
// along the tiles of queries that see it; or all such tiles of a pair, one after the other.
// docs/attention.md, "Backward", has the formulas; here all tiles of scores are transposed, keys by
// queries:
//   S = K Qᵀ        P = exp2(S * scale * log2(e) - lse2)
//   dP = V dOᵀ      dS = P * (dP - delta)
//   dV += P dO      dK += dS Q           the block's own, in registers until the end
//   dQ  = dSᵀ K                          added to a sum in memory, in turns
//   (order.h)
//
// Two warp groups compute, 64 keys each; P and dS go from accumulators into the next product as
// they are. Only dQ, a sum over all 128 keys, needs the dS of both groups, which goes through
// shared memory, stored transposed. Of the third warp group one warp loads (TMA), and two add the
// tiles of dQ to memory (bulk reductions). The products of a step are started such that the tensor
// cores work while the threads compute: dP during the exponentials, S of the next step while dQ of
// this one is written out.
#pragma once

#include "core/cuda/mma.cuh"
#include "core/cuda/tensor_map.h"
#include "core/cuda/wgmma.cuh"
#include "ops/attention/flash/backward/tiles.cuh"
#include "ops/attention/flash/backward/walk.cuh"

namespace mr::cuda::flash {

// A computing warp group. The sums leave few registers for anything else.
template <typename T, int kDim, int kRows>
__device__ __forceinline__ void backward_compute(const BackwardArgs& args, unsigned base,
                                                 const BackwardBarriers& barriers, int group) {
    using L = BackwardLayout<kDim, kRows>;
    using Tile = DqTile<kDim, kRows>;
    constexpr int kBlocks = kRows / 8;  // blocks of eight queries
    constexpr int kDqWidth = Tile::kFirstWidth;
    // Whether dV is started before dP is complete: its weights have to be packed first, so the
    // exponentials cannot be delayed until then. At head size 64 the registers do not hold that
    // many weights.
    constexpr bool kEarly = kDim > 64;
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;

    float dk[kDim / 2], dv[kDim / 2];
    float s[kRows / 2], dp[kRows / 2];

    // The group's rows in a slot for tiles of keys.
    const auto k_rows = [&](int slot) {
        return base + L::kK + slot * L::kKeyTile + group * 64 * 128;
    };
    const auto v_rows = [&](int slot) {
        return base + L::kV + slot * L::kKeyTile + group * 64 * 128;
    };
    const auto first_tile = [&] { return BlockWork::read_key_tile(base + L::kWork); };
    const auto sequence = [&] { return BlockWork::read_sequence(base + L::kWork); };
    // The slot of the block's n-th tile of keys.
    const auto slot_of = [](int n) { return L::kKeySlots == 2 ? n & 1 : 0; };
    const auto phase_of = [](int n) { return L::kKeySlots == 2 ? n >> 1 & 1 : 0; };
    // Waits for a tile's keys; those beyond the sequence's end become zeros.
    const auto wait_for_keys = [&](int n) {
        const int slot = slot_of(n);
        barrier_wait(barriers.k_full(slot), phase_of(n));
        const int rows = sequence().keys - (first_tile() + n) * L::kKeys;
        if (rows < L::kKeys) {
            barrier_wait(barriers.v_full(slot), phase_of(n));
            const int at = thread_here() - 128;
            clear_rows<L::kPanels>(base + L::kK + slot * L::kKeyTile, L::kKeyPanel, rows, L::kKeys,
                                   at, 256);
            clear_rows<L::kPanels>(base + L::kV + slot * L::kKeyTile, L::kKeyPanel, rows, L::kKeys,
                                   at, 256);
            stores_before_products();
            meet<1, 256>();
        }
    };
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
    // Overwrites the rows beyond the sequence's end in the tile of a stage with zeros.
    const auto clear_stage = [&](int stage) {
        const int what = read_word(base + L::kSteps + stage * 4);
        if (!(what & kShort)) return;
        const int rows = sequence().queries - what / kKinds * kRows, at = thread_here() - 128;
        clear_rows<L::kPanels>(base + L::kQ + stage * L::kRowTile, L::kRowPanel, rows, kRows, at,
                               256);
        clear_rows<L::kPanels>(base + L::kDo + stage * L::kRowTile, L::kRowPanel, rows, kRows, at,
                               256);
        stores_before_products();
        meet<1, 256>();
    };

    // Step i of all, in the n-th tile of keys; `over`: the tile's last step; `more`: another tile
    // follows. kNext: the step starts the scores of the next step, at the end of a tile those of
    // the next tile. After the very last step these scores have arbitrary operands and are not
    // used: the compiler allows no branch while products are in flight. For the same reason, with
    // one tile of keys, the last step is separate code.
    const auto take_step = [&](int i, int n, bool over, bool more, auto next_scores) {
        constexpr bool kNext = decltype(next_scores)::value;
        const int stage = i & 1, slot = slot_of(n);
        const unsigned q_at = base + L::kQ + stage * L::kRowTile;
        const unsigned do_at = base + L::kDo + stage * L::kRowTile;
        const unsigned ds_at = base + L::kDs + (L::kDsSlots == 2 ? stage * L::kDsTile : 0);

        barrier_wait(barriers.do_full(stage), (i >> 1) & 1);
        clear_stage(stage);
        multiply_wait<0>();
        keep_order(s);
        start_scores(dp, v_rows(slot), do_at);
        multiply_commit();
        const int what = read_word(base + L::kSteps + stage * 4);
        if (what & (kDiagonal | kMasked)) {
            hide_scores<kRows>(s, args.p.mask, sequence(), what, (first_tile() + n) * L::kKeys);
        }
        const float scale2 = args.p.scale * 1.4426950408889634f;
        std::uint32_t p16[kRows / 16][4], ds16[kRows / 16][4];
        const unsigned lse_at = base + L::kLse + stage * kRows * 4 + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            const float2 lse = read_pair(lse_at + n * 32);
            s[4 * n] = fast_exp2(fmaf(s[4 * n], scale2, -lse.x));
            s[4 * n + 1] = fast_exp2(fmaf(s[4 * n + 1], scale2, -lse.y));
            s[4 * n + 2] = fast_exp2(fmaf(s[4 * n + 2], scale2, -lse.x));
            s[4 * n + 3] = fast_exp2(fmaf(s[4 * n + 3], scale2, -lse.y));
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
        if constexpr (L::kDsSlots == 1) barrier_wait(barriers.ds_empty(), (i & 1) ^ 1);
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
            const std::uint64_t b = columns_descriptor(base + L::kK + slot * L::kKeyTile +
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
        multiply_wait<1>();  // dV and dK are complete
        if (lane == 0) barrier_arrive(barriers.do_empty(stage));
        if (lane == 0) barrier_arrive(barriers.q_empty(stage));
        if constexpr (kNext) {
            const int next = stage ^ 1;
            if (more) barrier_wait(barriers.q_full(next), ((i + 1) >> 1) & 1);
            if (over && more) wait_for_keys(n + 1);
            start_scores(s, k_rows(over ? slot ^ 1 : slot), base + L::kQ + next * L::kRowTile);
            multiply_commit();
        }

        multiply_wait<kNext ? 1 : 0>();  // dQ is complete
        keep_order(dq);
        if constexpr (L::kDsSlots == 1) {
            if (lane == 0) barrier_arrive(barriers.ds_empty());
        }
        barrier_wait(barriers.dq_ready(stage), (i >> 1) & 1);
        const unsigned dq_at =
            base + L::kDq + stage * L::kDqTile + Tile::begin(group) * 4 + thread * 16;
        bool last = false;
        if constexpr (L::kFold) {
            const DqStep step = DqStep::read(base + L::kDqSteps + stage * 8);
            last = step.last;
            if (last) {
                if (!step.alone) add_sums(dq, dq_at);
                write_dq<T, kDim>(args, step, sequence(), dq);
            }
        }
        if (!last) {
#pragma unroll
            for (int n = 0; n < kDqWidth / 8; ++n) {
                if (Tile::width(0) == Tile::width(1) || 8 * n < Tile::width(group)) {
                    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(dq_at + n * 2048),
                                 "f"(dq[4 * n]), "f"(dq[4 * n + 1]), "f"(dq[4 * n + 2]),
                                 "f"(dq[4 * n + 3])
                                 : "memory");
                }
            }
        }
        if (!last) stores_before_products();
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.dq_full(stage, group));
    };
    // Writes dK and dV of a tile through the shared memory of its K and V, which have been read, so
    // that rows are written in whole lines.
    const auto write_out = [&](int n) {
        const int slot = slot_of(n), thread = thread_here() % 128, warp = thread / 32;
        meet<1, 256>();
        const auto stage_out = [&](const float(&d)[kDim / 2], unsigned to, float factor) {
#pragma unroll
            for (int j = 0; j < kDim / 16; ++j) {
                std::uint32_t m[4];
#pragma unroll
                for (int h = 0; h < 4; ++h) {
                    m[h] = pack<T>(d[8 * j + 2 * h] * factor, d[8 * j + 2 * h + 1] * factor);
                }
                const int row = 16 * warp + lane / 8 % 2 * 8 + lane % 8, chunk = 2 * j + lane / 16;
                store_matrices(
                    to + chunk / 8 * L::kKeyPanel + row * 128 + (((chunk % 8) ^ (lane % 8)) << 4),
                    m);
            }
        };
        stage_out(dv, v_rows(slot), 1.0f);
        stage_out(dk, k_rows(slot), args.p.scale);
        stores_before_products();  // and before the next keys arrive there
        if (group == 0) {
            meet<2, 128>();
        } else {
            meet<3, 128>();
        }
        constexpr int kChunks = kDim / 8;
        const Sequence seq = sequence();
        const int key0 = (first_tile() + n) * L::kKeys + 64 * group;
        const int kv_head = BlockWork::read_kv_head(base + L::kWork);
        for (int i = thread; i < 64 * kChunks; i += 128) {
            const int row = i / kChunks, chunk = i % kChunks, key = key0 + row;
            if (key >= seq.keys) break;
            if (8 * chunk >= args.p.head_dim) continue;
            const unsigned at =
                chunk / 8 * L::kKeyPanel + row * 128 + (((chunk % 8) ^ (row % 8)) << 4);
            const auto copy = [&](unsigned from, const View& to) {
                *reinterpret_cast<uint4*>(to.row<T>(seq.k + key, kv_head, args.p.head_dim) +
                                          8 * chunk) = read_four(from + at);
            };
            copy(v_rows(slot), args.views.dv);
            copy(k_rows(slot), args.views.dk);
        }
        if constexpr (L::kKeySlots == 2) {  // the slot is free
            __syncwarp();
            if (lane == 0) barrier_arrive(barriers.keys_empty(slot));
        }
    };

    const auto steps_of = [&](int n) {
        const BackwardWalks<kRows, L::kKeys> walks(args.p.mask, sequence());
        return __shfl_sync(~0u, walks.seen_by(first_tile() + n).count() * args.p.group, 0);
    };
    const int count = L::kKeySlots == 2
                          ? __shfl_sync(~0u, BlockWork::read_end(base + L::kWork) - first_tile(), 0)
                          : 1;
    int i = 0;
    for (int n = 0; n < count; ++n) {
        int left = steps_of(n);
#pragma unroll
        for (int j = 0; j < kDim / 2; ++j) dk[j] = dv[j] = 0;
        if (left > 0) {
            if (n == 0) {
                wait_for_keys(0);
                barrier_wait(barriers.q_full(0), 0);
                start_scores(s, k_rows(0), base + L::kQ);
                multiply_commit();
            }
            barrier_wait(barriers.v_full(slot_of(n)), phase_of(n));
            if constexpr (L::kKeySlots == 2) {
                for (; left > 0; --left, ++i) {
                    take_step(i, n, left == 1, left > 1 || n + 1 < count, std::true_type{});
                }
            } else {
                for (; left > 1; --left, ++i) take_step(i, 0, false, true, std::true_type{});
                take_step(i, 0, true, false, std::false_type{});
            }
            keep_order(dk);
            keep_order(dv);
        }
        write_out(n);
    }
    multiply_wait<0>();
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
        barrier_init(barriers.ds_empty(), 8);  // a thread of every computing warp
        for (int i = 0; i < 2; ++i) {
            barrier_init(barriers.k_full(i), 1);
            barrier_init(barriers.v_full(i), 1);
            barrier_init(barriers.keys_empty(i), 8);
            barrier_init(barriers.q_full(i), 1);
            barrier_init(barriers.do_full(i), 1);
            barrier_init(barriers.q_empty(i), 8);
            barrier_init(barriers.do_empty(i), 8);
            barrier_init(barriers.dq_full(i, 0), 4);
            barrier_init(barriers.dq_full(i, 1), 4);
            barrier_init(barriers.dq_ready(i), 1);
        }
        barriers_ready();
    }
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    if (threadIdx.x == 0) {
        const unsigned n = atomicAdd(args.tickets, 1u);
        // More tickets than blocks: the counter was not reset, and no turn would ever come.
        if (n >= gridDim.x) __trap();
        const BackwardWork work = args.order.at(n);
        const int sequence = work.pair / args.p.kv_heads;
        const Sequence s = args.p.sequence(sequence);
        const BlockWork here{work.pair % args.p.kv_heads, first_row_tile(s.q, sequence, kRows),
                             work.key_tile, min(work.end, (s.keys + L::kKeys - 1) / L::kKeys), s};
        here.write(base + L::kWork);
    }
    __syncthreads();
    if (BlockWork::read_key_tile(base + L::kWork) >= BlockWork::read_end(base + L::kWork)) return;
    // The shuffle makes it uniform in the warp, which products require.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == 0) {
        give_registers<kLoadRegisters>();
        if (threadIdx.x == 0) {
            backward_load<kDim, kRows>(q_map, k_map, v_map, do_map, args, base, barriers);
        }
        if (threadIdx.x == 32 || threadIdx.x == 64) {
            backward_add<kDim, kRows>(args, base, barriers, static_cast<int>(threadIdx.x) / 64);
        }
    } else {
        take_registers<kComputeRegisters>();
        backward_compute<T, kDim, kRows>(args, base, barriers, group - 1);
    }
}

// Launches the kernel for the tensors of a problem.
template <typename T, int kDim>
void start_backward(const Context& ctx, const BackwardArgs& args) {
    constexpr int kRows = backward_rows(kDim);
    using L = BackwardLayout<kDim, kRows>;
    const Problem& p = args.p;
    // Without a query q and dout are not read, but a tensor map needs an address.
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
