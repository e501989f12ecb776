// The kernel of a step (step_cuda.h explains its purpose).
#pragma once

#include "ops/attention/paged/decode.cuh"
#include "ops/linear/small_finish.cuh"
#include "ops/linear/small_input.cuh"
#include "ops/step/step_cuda.h"
#include "ops/step/step_fetch.cuh"
#include "ops/step/step_finish.cuh"
#include "ops/step/step_link.cuh"
#include "ops/step/step_params.cuh"
#include "ops/step/step_view.cuh"

namespace mr::cuda::step {

using small::HeldNorm;

// A barrier of the grid: all blocks arrive, then wait. The counter's top bit flips when the last
// block has arrived, and its other bits then have their old values, so it needs no reset. One
// thread of a block makes all calls.
class GridBarrier {
  public:
    // Construct it before this block's first arrival and after the preceding kernels.
    __device__ explicit GridBarrier(unsigned* counter) : counter_(counter), phase_(~top()) {}
    GridBarrier() = default;  // none
    // Call it after a barrier of the block: the block's earlier writes can then be read by every
    // block that has waited.
    __device__ void arrive() const {
        const unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter_), "r"(step)
                     : "memory");
    }
    // If a block is missing (it found no room on the device), the kernel traps after a minute
    // instead of hanging.
    __device__ void wait() {
        const long long begin = clock64();
        while (((top() ^ phase_) & 0x80000000u) != 0) {
            if (clock64() - begin > (1ll << 37)) __trap();
        }
        phase_ = ~phase_;
    }

  private:
    __device__ unsigned top() const {
        unsigned now;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter_) : "memory");
        return now;
    }
    unsigned* counter_ = nullptr;
    unsigned phase_ = 0;  // its top bit equals the counter's once all have arrived
};

// Called by all threads that multiply.
__device__ __forceinline__ void meet(GridBarrier& grid) {
    if (threadIdx.x == 0) grid.wait();
    WarpsTeam<kMultiplying>{0, 1}.sync();
}

// Shared memory of the multiplying threads besides the room of inputs and sums.
struct Common {
    Phase phases[2];  // the current and the next
    Barriers barriers;
    int2 where[kStepRows];
    unsigned tags;            // one token: added to a phase's number, it gives the phase's tag
    View view, loading_view;  // one token: for the multiplying threads and for the loading ones
    Fetching fetching[2];     // of this attention and the next
};
static_assert(sizeof(Common) <= kCommonBytes);

// The state that a thread carries from phase to phase.
struct Going {
    Place place;
    GridBarrier grid;
};
// One product: loads its input into the room, multiplies this block's tiles from the ring, and runs
// the epilogue. `number` is the phase's.
template <typename R, typename T, bool kOne, bool kStreams>
__device__ __forceinline__ Going product(const Args& a, const Phase& phase, int number,
                                         unsigned ring, std::byte* room, Common& common,
                                         Going going) {
    using W = typename R::Weights;
    const Params& p = phase.p;
    Place& place = going.place;
    HeldNorm<W> norm;  // loaded while other blocks finish
    define(norm);
    if (HeldNorm<W>::possible(p)) norm.load(p);
    if (!kOne && phase.wait) meet(going.grid);
    const WarpsTeam<kMultiplying> team{0, 1};
    const int part = team.thread() / 32, lane = team.thread() % 32, rows = kOne ? 1 : p.rows;
    const int blocks = static_cast<int>(gridDim.x), first = first_tile(phase.first_block);
    const int tiles = first < p.tiles ? (p.tiles - first + blocks - 1) / blocks : 0;
    if (tiles == 0) return going;
    Stamp* stamp = a.stamps ? a.stamps + number - 1 : nullptr;
    if (!kOne) stamp_begin(stamp);
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    const int share = (granules - part + kWarps - 1) / kWarps;
    const bool half = kOne && phase.half;
    const int each = R::each(half);  // this warp's granules of a stage
    const int tile_stages = (granules + kWarps * each - 1) / (kWarps * each);
    std::byte* input = room;
    float* scales = reinterpret_cast<float*>(input + rows * p.x_stride);
    float* sums = scales + (W::kQuantised ? rows * granules * (W::kGranule / 32) : 0);

    const int columns = granules * W::kGranule;
    float residual = 0;
    HeldFinish finish;
    const Results results{phase, first, blocks};
    const unsigned residual_tag = common.tags + phase.residual_tag;
    if constexpr (kOne) {
        const int i = team.thread();
        if (i < min(tiles, p.pass_tiles) << results.log_each()) {
            finish =
                held_finish<T, kStreams>(results, results.row(i), common.where[0], residual_tag);
        }
        const TaggedRow from{phase.in, common.tags + phase.in_tag,
                             reinterpret_cast<float4*>(sums + kRowShared<small::kInputThreads>)};
        const small::SharedRow<W> to{input, scales};
        if (p.norm_weight) {
            small::load_normed<W, T>(p, norm, from, to, columns, sums, team);
        } else {
            small::load_ready<W, T>(static_cast<int>(p.k), from, to, columns);
        }
    } else {
        if (p.finish == Finish::add) {
            const int i = team.thread(), per_tile = kTileRows * rows;
            const int row = (first + i / per_tile * blocks) * kTileRows + i % per_tile / rows;
            if (row < p.n && i / per_tile < min(tiles, p.pass_tiles)) {
                residual = static_cast<const float*>(
                    p.out)[static_cast<std::int64_t>(i % rows) * p.out_cols + row];
            }
        }
        for (int row = 0; row < rows; ++row) {
            if (p.norm_weight && row > 0) team.sync();  // the statistics reuse their memory
            const small::SharedRow<W> to{input + row * p.x_stride, scales + row * (columns / 32)};
            small::load_row<W, T>(p, norm, row, to, columns, sums, team);
        }
    }
    team.sync();
    if (kOne) stamp_begin(stamp);  // waiting does not count as work

    const int token = kOne ? 0 : min(lane / 4, rows - 1);
    const unsigned x0 =
        W::input(shared_address(input) + token * p.x_stride + part * W::kInputStep, lane);
    constexpr int kBlocks = W::kGranule / 32;
    const int token_a = kOne ? 0 : min(lane % 4 * 2, rows - 1);
    const int token_b = kOne ? 0 : min(lane % 4 * 2 + 1, rows - 1);
    const float* a0 = scales + (token_a * granules + part) * kBlocks;
    const float* b0 = scales + (token_b * granules + part) * kBlocks;
    const unsigned full = shared_address(common.barriers.full);
    const unsigned empty = shared_address(common.barriers.empty);

    for (int done = 0; done < tiles; done += p.pass_tiles) {
        const int count = min(p.pass_tiles, tiles - done);
        // The operands of a stage are loaded to registers while the previous stage is multiplied,
        // which frees the stage's slot early.
        typename R::template Held<kOne> held[2];
        define(held);
        int loading = 0;  // stage of its tile being loaded
        const auto granules_of = [&](int s) { return min(share - s * each, each); };
        const auto load = [&](auto& to) {
            barrier_wait(full + place.stage * 8, place.parity);
            if (granules_of(loading) > 0) {
                const int n = loading * each * kWarps;
                to.load(granules_of(loading), half, ring + place.stage * R::kStageBytes, part,
                        x0 + n * W::kInputStep, a0 + n * kBlocks, b0 + n * kBlocks, lane);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + place.stage * 8);
            place.next(a.stages);
            loading = loading + 1 == tile_stages ? 0 : loading + 1;
        };
        float acc[4] = {};
        int stage = 0;  // stage of its tile being multiplied
        float* to = sums + part * kTileRows * rows;
        const auto multiply = [&](const auto& from) {
            if (granules_of(stage) > 0) from.multiply(granules_of(stage), half, acc);
            if (++stage < tile_stages) return;
            stage = 0;
            const int g = lane / 4, even = lane % 4 * 2;
            if (even < rows) {
                to[g * rows + even] = acc[0];
                to[(g + 8) * rows + even] = acc[2];
            }
            if (even + 1 < rows) {
                to[g * rows + even + 1] = acc[1];
                to[(g + 8) * rows + even + 1] = acc[3];
            }
            to += kWarps * kTileRows * rows;
#pragma unroll
            for (float& x : acc) x = 0;
        };
        load(held[0]);
#pragma unroll 1
        for (int left = count * tile_stages; left > 0; left -= 2) {
            if (left > 1) load(held[1]);
            multiply(held[0]);
            if (left == 1) break;
            if (left > 2) load(held[0]);
            multiply(held[1]);
        }
        team.sync();
        if constexpr (kOne) {
            send_tiles<kMultiplying, T, kStreams>({phase, first + done * blocks, blocks}, sums,
                                                  count, finish, done == 0, common.tags + number);
        } else {
            small::finish_tiles<kMultiplying, kOne, T>(p, common.where, sums, first + done * blocks,
                                                       blocks, count, residual, done == 0);
        }
        if (done + p.pass_tiles < tiles) team.sync();
    }
    stamp_end(stamp);
    return going;
}

// Attention of one layer: teams of four warps, two per block, do the work of a block of decode.cu.
template <typename T, int D, bool kOne, bool kStreams>
__device__ __forceinline__ Going attend(const Args& a, const Phase& phase, int number,
                                        unsigned tags, std::byte* room, Going going) {
    if (!kOne) meet(going.grid);
    Stamp* stamp = a.stamps ? a.stamps + number - 1 : nullptr;
    if (!kOne) stamp_begin(stamp);
    const attn::Args& args = a.attention;
    const int index = thread_here() / attn::kDecodeThreads;
    const WarpsTeam<attn::kDecodeThreads> team{index * attn::kDecodeThreads, 2 + index};
    auto& shared = reinterpret_cast<AttendShared<T, D>*>(room)[index];
    const int all = args.kv_heads * a.tiles * a.parts;
    const int teams = static_cast<int>(gridDim.x) * kTeams;
    for (int i = static_cast<int>(blockIdx.x) + index * static_cast<int>(gridDim.x); i < all;
         i += teams) {
        const int rest = i / args.kv_heads;
        const attn::DecodePlace place{i % args.kv_heads, rest % a.tiles, rest / a.tiles, a.parts};
        if constexpr (kOne) {
            const TaggedLink link{phase.in,      tags + phase.in_tag, phase.out,   a.part_words,
                                  tags + number, a.most_parts,        shared.rows, stamp};
            attn::decode_parts<T, D, kStreams>(args, phase.keys, phase.values, place, shared.decode,
                                               team, link);
        } else {
            attn::decode_parts<T, D, kStreams>(args, phase.keys, phase.values, place, shared.decode,
                                               team);
        }
        team.sync();
        stamp_end(stamp);
    }
    return going;
}

// The same for one token with key numbers of a view: keys come through the ring.
template <typename R, typename T, int D>
__device__ __forceinline__ Going attend_one_view(const Args& a, const Phase& phase, int number,
                                                 std::byte* shared, Common& common, Going going) {
    static_assert(KeyStage<D>::kBytes <= R::kStageBytes);
    Stamp* stamp = a.stamps ? a.stamps + number - 1 : nullptr;
    const int index = thread_here() / attn::kDecodeThreads;
    const WarpsTeam<attn::kDecodeThreads> team{index * attn::kDecodeThreads, 2 + index};
    auto& mine = reinterpret_cast<ViewShared<T, D>*>(shared + a.room)[index];
    const TaggedLink link{phase.in,
                          common.tags + phase.in_tag,
                          phase.out,
                          a.part_words,
                          common.tags + number,
                          a.most_parts,
                          mine.rows,
                          stamp};
    const unsigned full = shared_address(common.barriers.full);
    const unsigned empty = shared_address(common.barriers.empty);
    Place& place = going.place;
    attend_view<T, D>(a.attention, common.view, mine, index, team, link, [&](auto&& load) {
        barrier_wait(full + place.stage * 8, place.parity);
        load(shared + place.stage * R::kStageBytes + index * KeyStage<D>::kTeamBytes);
        __syncwarp();
        if (team.thread() % 32 == 0) barrier_arrive(empty + place.stage * 8);
        place.next(a.stages);
    });
    stamp_end(stamp);
    return going;
}

// R: the ring's layout of weights; T: the compute type; D: head_dim; kOne: one token; kStreams:
// sequences may stream. Without streams there are no instructions for them.
template <typename R, typename T, int D, bool kOne, bool kStreams>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ Args a) {
    constexpr bool kView = kOne && kStreams;
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ Common common;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        for (int i = 0; i < a.stages; ++i) {
            barrier_init(shared_address(common.barriers.full + i), R::template kArrivals<kView>);
            barrier_init(shared_address(common.barriers.empty + i), kWarps);
        }
    }
    if (a.clear) {
        for (int i = thread; i < a.room / 16; i += kThreads) {
            reinterpret_cast<uint4*>(shared)[i] = uint4{};
        }
    }
    barriers_ready();
    const auto copy_phase = [&](int i, int to) {
        if (thread < kPhasePieces) {
            reinterpret_cast<uint4*>(common.phases + to)[thread] =
                reinterpret_cast<const uint4*>(a.phases + i)[thread];
        }
    };
    copy_phase(0, 0);
    __syncthreads();
    let_next_start();
    const unsigned ring = shared_address(shared);
    if (thread >= kMultiplying) {
        give_registers<kView ? kFetchKeysRegisters : kFetchRegisters>();
        if (kView || thread < kMultiplying + R::kFetching) {
            fetch_all<R, T, D, kView>(a, ring, common.barriers, common.loading_view,
                                      common.fetching);
        }
        return;
    }
    take_registers<kView ? kMultiplyKeysRegisters : kMultiplyRegisters>();

    const WarpsTeam<kMultiplying> team{0, 1};
    std::byte* room = shared + a.room;
    wait_for_previous();
    Going going{{0, 0}, {}};
    if constexpr (!kOne) going.grid = GridBarrier(a.barrier);
    if (kOne && thread == 0) common.tags = *a.barrier;
    if (kView && thread == 0) common.view.make(a.attention);
    // Positions and pages do not change during a step. Its first product is q, k and v.
    if (thread < common.phases[0].p.rows) {
        common.where[thread] = small::place_of(common.phases[0].p, thread);
    }
    if constexpr (kOne) {
        team.sync();
        const int i = static_cast<int>(blockIdx.x) * kMultiplying + thread;
        if (i < a.columns) send(a.x_words + i, a.x[i], common.tags);
    }
#pragma unroll 1
    for (int i = 0; i < a.count; ++i) {
        const Phase& phase = common.phases[i % 2];
        if (thread < kPhasePieces && i + 1 < a.count) {
            copy16(shared_address(common.phases + (i + 1) % 2) + thread * 16,
                   reinterpret_cast<const uint4*>(a.phases + i + 1) + thread);
        }
        commit_copies();
        if (!phase.keys) {
            going = product<R, T, kOne, kStreams>(a, phase, i + 1, ring, room, common, going);
        } else if constexpr (kView) {
            going = attend_one_view<R, T, D>(a, phase, i + 1, shared, common, going);
        } else {
            going = attend<T, D, kOne, kStreams>(a, phase, i + 1, common.tags, room, going);
        }
        wait_for_copies();
        const bool arrive = !kOne && phase.arrive;
        team.sync();  // the room and the phase's slot are free
        if (arrive && thread == 0) going.grid.arrive();
    }
    // The next step's tags begin where those of this step end. The last block writes that number.
    if (kOne && thread == 0 && atomicAdd(a.barrier + 1, 1u) + 1 == gridDim.x) {
        a.barrier[1] = 0;
        a.barrier[0] = common.tags + a.count + 1;
    }
}

template <typename R, typename T>
void start(const Context& ctx, const Start& s, const Args& args) {
    const auto start_kernel = [&](auto* kernel) {
        allow_shared(kernel, s.shared_bytes);
        launch(ctx, dim3(static_cast<unsigned>(s.blocks)), dim3(kThreads), s.shared_bytes, kernel,
               args);
    };
    with_head_dim(s.head_dim, [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        if (s.streams) {
            s.one ? start_kernel(step_kernel<R, T, kDim, true, true>)
                  : start_kernel(step_kernel<R, T, kDim, false, true>);
        } else {
            s.one ? start_kernel(step_kernel<R, T, kDim, true, false>)
                  : start_kernel(step_kernel<R, T, kDim, false, false>);
        }
    });
}

}  // namespace mr::cuda::step
