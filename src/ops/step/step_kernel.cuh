// The kernel of a step (step_cuda.h says what it is for).
#pragma once

#include "ops/attention/attention_decode.cuh"
#include "ops/linear/small_finish.cuh"
#include "ops/linear/small_input.cuh"
#include "ops/step/step_cuda.h"
#include "ops/step/step_params.cuh"

namespace mr::cuda::step {

using small::HeldNorm;

// All blocks arrive, then wait. The counter's top bit turns when the last one has come, and its
// other bits are then as they were: nobody needs to reset it. One thread of a block calls all of
// it.
class GridBarrier {
  public:
    // Before this block's first arrival, and after the kernels before this one.
    __device__ explicit GridBarrier(unsigned* counter) : counter_(counter), turned_(~top()) {}
    // What the block wrote before a barrier of its own can be read by whoever has waited.
    __device__ void arrive() const {
        const unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter_), "r"(step)
                     : "memory");
    }
    // A block that never comes (it found no room) ends the kernel after a minute: an error instead
    // of silence.
    __device__ void wait() {
        const long long begin = clock64();
        while (((top() ^ turned_) & 0x80000000u) != 0) {
            if (clock64() - begin > (1ll << 37)) __trap();
        }
        turned_ = ~turned_;
    }

  private:
    __device__ unsigned top() const {
        unsigned now;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter_) : "memory");
        return now;
    }
    unsigned* counter_;
    unsigned turned_;  // its top bit: what the counter's will be when all have come
};

// Where a warp is in the ring: which stage comes next, and for the how-manieth time.
struct Place {
    int stage = 0;
    unsigned parity;
    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Barriers {
    std::uint64_t full[kMostStages], empty[kMostStages];
};

__device__ __forceinline__ int first_tile(int first_block) {
    const int at = static_cast<int>(blockIdx.x) - first_block;
    return at < 0 ? at + static_cast<int>(gridDim.x) : at;
}

__device__ __forceinline__ Source source_of(const Phase& phase) {
    const Params& p = phase.p;
    return {p.w,
            static_cast<int>(p.k),
            p.n,
            phase.keys ? 0 : p.tiles,
            p.lower,
            p.finish == Finish::gate ? kTileRows / 2 : kTileRows,
            phase.first_block};
}

// The warps that fetch: all weights of this block's tiles, as fast as the ring is emptied.
template <typename R>
__device__ void fetch_all(const Args& a, unsigned ring, const Barriers& barriers) {
    const int lane = static_cast<int>(threadIdx.x) - kMultiplying;
    const unsigned full = shared_address(barriers.full), empty = shared_address(barriers.empty);
    const std::uint64_t policy = read_once_policy();
    Place place{0, 1};   // at first all stages are free
    Place oldest{0, 0};  // of those on their way
    int under_way = 0;
    Source source = source_of(a.phases[0]);
    for (int i = 0; i < a.count; ++i) {
        const Source next = source_of(a.phases[min(i + 1, a.count - 1)]);  // under way meanwhile
        for (int tile = first_tile(source.first_block); tile < source.tiles;
             tile += static_cast<int>(gridDim.x)) {
            typename R::Fetch fetch = R::begin(source, tile, lane);
            while (fetch.left > 0) {
                // With more on its way than keeps the memory busy, whatever else is read or
                // written would only wait longer.
                if (under_way == a.flight) {
                    barrier_wait(full + oldest.stage * 8, oldest.parity);
                    oldest.next(a.stages);
                } else {
                    ++under_way;
                }
                barrier_wait(empty + place.stage * 8, place.parity);
                R::stage(fetch, ring + place.stage * R::kStageBytes, full + place.stage * 8, policy,
                         lane);
                place.next(a.stages);
            }
        }
        source = next;
    }
}

// What the threads that multiply share besides the room.
struct Common {
    Phase phases[2];  // this one and the next
    Barriers barriers;
    int2 where[kStepRows];
};
static_assert(sizeof(Common) <= kCommonBytes);

// One product: its input into the room, this block's tiles through the ring, what becomes of them.
template <typename R, typename T, bool kOne>
__device__ __forceinline__ void product(const Args& a, const Params& p, int first_block,
                                        unsigned ring, std::byte* room, Common& common,
                                        Place& place, const HeldNorm<typename R::Weights>& held) {
    using W = typename R::Weights;
    const WarpsTeam<kMultiplying> team{0, 1};
    const int part = team.thread() / 32, lane = team.thread() % 32, rows = kOne ? 1 : p.rows;
    const int blocks = static_cast<int>(gridDim.x), first = first_tile(first_block);
    const int tiles = first < p.tiles ? (p.tiles - first + blocks - 1) / blocks : 0;
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    const int share = (granules - part + kWarps - 1) / kWarps;
    const int tile_stages = (granules + kWarps * R::kEach - 1) / (kWarps * R::kEach);
    std::byte* input = room;
    float* scales = reinterpret_cast<float*>(input + rows * p.x_stride);
    float* sums = scales + (W::kQuantised ? rows * granules * (W::kGranule / 32) : 0);

    float residual = 0;
    if (p.finish == Finish::add) {
        const int i = team.thread(), per_tile = kTileRows * rows;
        const int row = (first + i / per_tile * blocks) * kTileRows + i % per_tile / rows;
        if (row < p.n && i / per_tile < min(tiles, p.pass_tiles)) {
            residual = static_cast<const float*>(
                p.out)[static_cast<std::int64_t>(i % rows) * p.out_cols + row];
        }
    }
    const int columns = granules * W::kGranule;
    for (int row = 0; row < rows; ++row) {
        if (p.norm_weight && row > 0) team.sync();  // the statistics' room is used again
        const small::SharedRow<W> to{input + row * p.x_stride, scales + row * (columns / 32)};
        small::load_row<W, T>(p, held, row, to, columns, sums, team);
    }
    team.sync();

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
        for (int local = 0; local < count; ++local) {
            float acc[4] = {};
            unsigned x = x0;
            const float *sa = a0, *sb = b0;
            int left = share;
            for (int s = 0; s < tile_stages; ++s) {
                barrier_wait(full + place.stage * 8, place.parity);
                const unsigned stage = ring + place.stage * R::kStageBytes;
                if (left >= R::kEach) {
                    R::template multiply<R::kEach, kOne>(acc, stage, part, x, sa, sb, lane);
                } else if (left > 0) {  // kEach is 1 or 2
                    R::template multiply<1, kOne>(acc, stage, part, x, sa, sb, lane);
                }
                x += R::kEach * kWarps * W::kInputStep;
                sa += R::kEach * kWarps * kBlocks, sb += R::kEach * kWarps * kBlocks;
                left -= R::kEach;
                __syncwarp();
                if (lane == 0) barrier_arrive(empty + place.stage * 8);
                place.next(a.stages);
            }
            float* to = sums + (local * kWarps + part) * kTileRows * rows;
            const int g = lane / 4, even = lane % 4 * 2;
            if (even < rows) {
                to[g * rows + even] = acc[0];
                to[(g + 8) * rows + even] = acc[2];
            }
            if (even + 1 < rows) {
                to[g * rows + even + 1] = acc[1];
                to[(g + 8) * rows + even + 1] = acc[3];
            }
        }
        team.sync();
        small::finish_tiles<kMultiplying, kOne, T>(p, common.where, sums, first + done * blocks,
                                                   blocks, count, residual, done == 0);
        if (done + p.pass_tiles < tiles) team.sync();
    }
}

// Attention of one layer: teams of four warps, two a block, take what would be blocks elsewhere.
template <typename T, int D>
__device__ __forceinline__ void attend(const attn::Args& args, const void* keys, const void* values,
                                       int tiles, int parts, std::byte* room) {
    const int index = static_cast<int>(threadIdx.x) / attn::kDecodeThreads;
    const WarpsTeam<attn::kDecodeThreads> team{index * attn::kDecodeThreads, 2 + index};
    auto& shared = reinterpret_cast<attn::DecodeShared<D>*>(room)[index];
    const int all = args.kv_heads * tiles * parts;
    const int teams = static_cast<int>(gridDim.x) * kTeams;
    for (int i = static_cast<int>(blockIdx.x) + index * static_cast<int>(gridDim.x); i < all;
         i += teams) {
        const int rest = i / args.kv_heads;
        attn::decode_parts<T, D>(args, keys, values,
                                 {i % args.kv_heads, rest % tiles, rest / tiles, parts}, shared,
                                 team);
        team.sync();
    }
}
// R: how weights pass through the ring; T: the compute type; D: the head's width; kOne: one token.
template <typename R, typename T, int D, bool kOne>
__global__ void __launch_bounds__(kThreads, 1) step_kernel(const __grid_constant__ Args a) {
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ Common common;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        for (int i = 0; i < a.stages; ++i) {
            barrier_init(shared_address(common.barriers.full + i), R::kArrivals);
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
        give_registers<kFetchRegisters>();
        if (thread < kMultiplying + R::kFetching) fetch_all<R>(a, ring, common.barriers);
        return;
    }
    take_registers<kMultiplyRegisters>();

    using W = typename R::Weights;
    const WarpsTeam<kMultiplying> team{0, 1};
    std::byte* room = shared + a.room;
    Place place{0, 0};
    wait_for_previous();
    GridBarrier grid(a.barrier);
    // Positions and pages stay as they are during a step; its first product is that of q, k and v.
    if (thread < common.phases[0].p.rows) {
        common.where[thread] = small::place_of(common.phases[0].p, thread);
    }
#pragma unroll 1
    for (int i = 0; i < a.count; ++i) {
        const Phase& phase = common.phases[i % 2];
        HeldNorm<W> held;
        if (!phase.keys && HeldNorm<W>::possible(phase.p)) held.load(phase.p);
        uint4 next{};
        if (thread < kPhasePieces && i + 1 < a.count) {
            next = reinterpret_cast<const uint4*>(a.phases + i + 1)[thread];
        }
        if (phase.wait) {
            if (thread == 0) grid.wait();
            team.sync();
        }
        {
            const StageClock clock(a.stamps ? a.stamps + i : nullptr);
            if (phase.keys) {
                attend<T, D>(a.attention, phase.keys, phase.values, a.tiles, a.parts, room);
            } else {
                product<R, T, kOne>(a, phase.p, phase.first_block, ring, room, common, place, held);
            }
        }
        if (thread < kPhasePieces) {
            reinterpret_cast<uint4*>(common.phases + (i + 1) % 2)[thread] = next;
        }
        const bool arrive = phase.arrive;
        team.sync();  // the room, and the place of the phase, are free
        if (arrive && thread == 0) grid.arrive();
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
        s.rows == 1 ? start_kernel(step_kernel<R, T, kDim, true>)
                    : start_kernel(step_kernel<R, T, kDim, false>);
    });
}

}  // namespace mr::cuda::step
