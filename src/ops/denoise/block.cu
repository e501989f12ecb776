#include <cstdint>

#include "core/cuda/kernel.cuh"
#include "core/cuda/loop.cuh"
#include "core/error.h"
#include "ops/denoise/block_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kDenoiseBlockThreads = 2 * kBlockPlaces;  // a pass has a block and the previous one

// The places that a pass asks for. A pass that only commits a block asks for at most the first.
__device__ __forceinline__ std::uint64_t asked_places(const BlockState& state,
                                                      const BlockRows& rows) {
    if (rows.asked == 0) return 0;
    const std::uint64_t all = block_asks(state.known, state.end - state.start, state.part);
    return rows.commits ? all & 1 : all;
}

__global__ void __launch_bounds__(kDenoiseBlockThreads)
    rows_kernel(const BlockState* from, const BlockRows rows, Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const BlockState& state = *from;
    const int i = static_cast<int>(threadIdx.x);
    if (!rows.text && i < rows.count) {
        const int position = state.from + i, place = position - state.start;
        int id = state.mask;
        if (place < 0) {
            id = state.before[i];
        } else if (state.known >> place & 1) {
            id = state.ids[place];
        }
        rows.ids[i] = id;
        rows.positions[i] = position;
        rows.sequence[i] = 0;
    }
    if (i < 2) rows.first[i] = i * rows.count;
    if (i < rows.asked) {
        const int place = i + rows.place;
        GuessRow row = state.row;
        row.sampling.position = state.start + place;
        row.sampling.step = state.pass;
        row.sampling.active =
            place < kBlockPlaces && (asked_places(state, rows) >> place & 1) ? 1 : 0;
        rows.guesses[i] = row;
        if (rows.text) rows.asked_at[i] = state.start + place - rows.speaks_of;
    }
}

// Same as ops::scheduled().
__device__ __forceinline__ int scheduled(const BlockState& state) {
    const int steps = state.how.steps;
    if (steps <= 0) return 1;
    return max(state.block / steps + (state.pass < state.block % steps ? 1 : 0), 1);
}

// One thread per place. Guesses are ranked by counting those that precede each: this is the order
// of ops::choose(), whose sort is stable.
__global__ void __launch_bounds__(kBlockPlaces)
    choose_kernel(BlockState* at, const BlockRows rows, const DeviceGuess* made,
                  BlockReport* report, LoopGraph::Loop loop, Stamp* stamp) {
    __shared__ float keys[kBlockPlaces];     // by place: smaller ones go first
    __shared__ float entropy[kBlockPlaces];  // by rank
    __shared__ int taken;
    __shared__ unsigned flags, above;
    __shared__ unsigned long long settled;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    BlockState& state = *at;
    const int place = static_cast<int>(threadIdx.x), guess = place - rows.place;
    const std::uint64_t asked = asked_places(state, rows);
    const bool mine = asked >> place & 1;
    const ops::Remask remask = state.how.remask;
    const bool by_entropy = remask == ops::Remask::entropy;
    if (place == 0) {
        flags = 0;
        above = 0;
        settled = 0;
    }
    __syncthreads();
    DeviceGuess my{};
    if (mine) {
        my = made[guess];
        if (my.flags) atomicOr(&flags, my.flags);
        if (my.guess.confidence > state.how.threshold) atomicAdd(&above, 1u);
        keys[place] = by_entropy ? my.guess.entropy : -my.guess.confidence;
    }
    __syncthreads();
    int rank = 0;
    if (mine) {
        for (int other = 0; other < kBlockPlaces; ++other) {
            if (!(asked >> other & 1)) continue;
            const bool before = remask == ops::Remask::sequential || keys[other] == keys[place]
                                    ? other < place
                                    : keys[other] < keys[place];
            rank += before ? 1 : 0;
        }
        entropy[rank] = my.guess.entropy;
    }
    __syncthreads();
    if (place == 0) {
        const int count = __popcll(asked);
        taken = min(scheduled(state), count);
        if (remask == ops::Remask::dynamic) taken = max(taken, static_cast<int>(above));
        if (by_entropy) {
            float sum = 0;
            for (taken = 0; taken < count; ++taken) {
                sum = __fadd_rn(sum, entropy[taken]);
                if (taken > 0 && sum > state.how.entropy_bound) break;
            }
        }
    }
    __syncthreads();
    if (mine && rank < taken) {
        state.ids[place] = my.guess.id;
        if (rows.text) rows.text[state.start + place] = my.guess.id;
        atomicOr(&settled, 1ull << place);
    }
    __syncthreads();
    const int places = state.end - state.start;
    const std::uint64_t known = state.known | settled;
    const bool failed = flags != 0;
    const bool filled = block_asks(known, places, state.part) == 0;
    if (filled && place < places) report->ids[place] = state.before[place] = state.ids[place];
    __threadfence_system();
    __syncthreads();
    if (place > 0) return;
    const std::uint32_t passes = state.passes + 1;
    const std::uint32_t blocks = state.blocks + (filled || failed ? 1 : 0);
    state.passes = passes;
    state.blocks = blocks;
    // The text before the block is committed now. A filled block becomes the text before the next
    // one.
    state.from = state.start;
    if (filled) {
        state.start = state.end;
        state.end = min(state.end + state.block, state.size);
        state.known = 0;
        state.pass = 0;
    } else {
        state.known = known;
        state.pass += rows.asked > 0 ? 1 : 0;
    }
    report->flags = flags;
    __threadfence_system();
    *const_cast<volatile std::uint64_t*>(&report->progress) = std::uint64_t{blocks} << 32 | passes;
    loop_again(loop, !filled && !failed);
}

}  // namespace

void block_rows(const Context& ctx, const BlockState* state, const BlockRows& rows) {
    MR_CHECK((rows.text || rows.count <= kDenoiseBlockThreads) && rows.asked <= kBlockPlaces,
             "a pass has two blocks at most, or a text that is there");
    const int written = rows.text ? rows.asked : 3 * rows.count;  // words of 4 bytes
    Stamp* stamp = account(ctx, OpKind::sample, "block rows",
                           {1, sizeof(BlockState),
                            static_cast<std::uint64_t>(written) * 4 +
                                static_cast<std::uint64_t>(rows.asked) * sizeof(GuessRow),
                            0, 0});
    launch(ctx, dim3(1), dim3(kDenoiseBlockThreads), 0, rows_kernel, state, rows, stamp);
}

void block_choose(const Context& ctx, BlockState* state, const BlockRows& rows,
                  const DeviceGuess* made, BlockReport* report, LoopGraph::Loop loop) {
    Stamp* stamp = account(
        ctx, OpKind::sample, "choose",
        {1, static_cast<std::uint64_t>(rows.asked) * sizeof(DeviceGuess) + sizeof(BlockState),
         sizeof(BlockState), 0, 0});
    launch(ctx, dim3(1), dim3(kBlockPlaces), 0, choose_kernel, state, rows, made, report, loop,
           stamp);
}

}  // namespace mr::cuda
