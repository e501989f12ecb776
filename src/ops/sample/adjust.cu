#include "core/cuda/kernel.cuh"
#include "ops/sample/adjust_cuda.h"
#include "ops/sample/sample_team.cuh"

namespace mr::cuda {
namespace {

using sampling::candidate;
using sampling::id_in;
using sampling::key_in;
using sampling::logit_of;
using sampling::u64;
using sampling::warp_reduce;

constexpr int kAdjustThreads = 1024, kWarps = kAdjustThreads / 32;
constexpr float kInfinity = __builtin_huge_valf();

// Reduction over the block, always in the same order. `space`: [kWarps]; every thread calls it.
template <typename T, typename Op>
__device__ T block_reduce(T x, T* space, Op op) {
    x = warp_reduce(x, op);
    __syncthreads();  // earlier reads of `space` are done
    if (threadIdx.x % 32 == 0) space[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_reduce(space[threadIdx.x % kWarps], op);
}

// Logits of +inf share all the probability, as in ops::sample().
__device__ double above(float x, float most) {
    if (!isinf(most)) return static_cast<double>(x) - static_cast<double>(most);
    return x == most ? 0.0 : -static_cast<double>(kInfinity);
}

// The sum of the softmax and the best tokens: each round finds the best one after the last.
__device__ void find_best(const float* logits, int vocab, int wanted, RowBest& out) {
    __shared__ u64 keys[kWarps];
    __shared__ double sums[kWarps];
    const auto thread = static_cast<int>(threadIdx.x);
    const auto greater = [](u64 a, u64 b) { return a > b ? a : b; };
    u64 last = ~u64{0};
    float most = 0;
    const int rounds = max(wanted, 1);
    for (int i = 0; i < rounds; ++i) {
        u64 mine = 0;
        for (int id = thread; id < vocab; id += kAdjustThreads) {
            const u64 one = candidate(logits[id], id);
            if (one < last) mine = max(mine, one);
        }
        last = block_reduce(mine, keys, greater);
        const float logit = logit_of(key_in(last));
        if (i == 0) most = logit;
        if (last == 0 || logit == -kInfinity) {
            if (thread == 0) out.count = min(i, wanted);
            break;
        }
        if (thread != 0) continue;
        out.count = min(i + 1, wanted);
        if (i < wanted) {
            out.ids[i] = id_in(last);
            out.logits[i] = logit;
        }
    }
    double sum = 0;
    for (int id = thread; id < vocab; id += kAdjustThreads) {
        sum += exp(above(logits[id], most));
    }
    sum = block_reduce(sum, sums, [](double a, double b) { return a + b; });
    if (thread == 0) {
        out.sum = sum;
        out.most = most;
    }
}

// One block per row.
__global__ void __launch_bounds__(kAdjustThreads)
    adjust_rows(float* all, int vocab, const AdjustState state, Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const AdjustRow row = state.rows[blockIdx.x];
    if (row.slot < 0) return;
    float* const logits = all + static_cast<std::int64_t>(blockIdx.x) * vocab;
    const std::int64_t at = static_cast<std::int64_t>(row.slot) * vocab;
    const auto thread = static_cast<int>(threadIdx.x);
    if (row.logprobs >= 0) find_best(logits, vocab, row.logprobs, state.best[row.slot]);
    if (!row.adjusts) return;
    if (row.logprobs >= 0) {
        __syncthreads();
        for (int id = thread; id < vocab; id += kAdjustThreads) state.raw[at + id] = logits[id];
    }
    __syncthreads();
    const ops::LogitBias* const bias =
        state.bias + static_cast<std::int64_t>(row.slot) * ops::kMostBiases;
    for (int i = thread; i < row.biases; i += kAdjustThreads) logits[bias[i].id] += bias[i].add;
    __syncthreads();
    const bool counts = row.presence != 0 || row.frequency != 0;
    if (!counts && row.mask < 0) return;
    const std::uint32_t* const mask =
        row.mask < 0 ? nullptr : state.masks + static_cast<std::int64_t>(row.mask) * state.words;
    for (int id = thread; id < vocab; id += kAdjustThreads) {
        const int count = counts ? state.counts[at + id] : 0;
        if (mask && (mask[id / 32] >> (id % 32) & 1) == 0) {
            logits[id] = -kInfinity;
        } else if (count > 0) {
            logits[id] -= ops::penalty_of(row.presence, row.frequency, count);
        }
    }
}

// One warp per row, after the draw.
__global__ void __launch_bounds__(32)
    note_rows(const float* all, int vocab, const AdjustState state, const SampleState drawn,
              Stamp* stamp) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const AdjustRow row = state.rows[blockIdx.x];
    if (row.slot < 0 || drawn.flags[blockIdx.x] != 0) return;
    const std::int32_t id = drawn.next_ids[blockIdx.x];
    const std::int64_t at = static_cast<std::int64_t>(row.slot) * vocab + id;
    const auto lane = static_cast<int>(threadIdx.x);
    if (lane == 0 && (row.presence != 0 || row.frequency != 0)) {
        if (state.counts[at] < ops::kMostCounted) ++state.counts[at];
    }
    if (row.logprobs < 0) return;
    const RowBest& best = state.best[row.slot];
    DrawNote& note = state.notes[row.slot * Adjuster::kNotes +
                                 static_cast<int>(row.number % unsigned{Adjuster::kNotes})];
    const double whole = log(best.sum);
    if (lane < best.count) {
        note.ids[lane] = best.ids[lane];
        note.logprobs[lane] = above(best.logits[lane], best.most) - whole;
    }
    if (lane == 0) {
        const float raw =
            row.adjusts ? state.raw[at] : all[static_cast<std::int64_t>(blockIdx.x) * vocab + id];
        note.logprob = above(raw, best.most) - whole;
        note.count = best.count;
    }
    __threadfence_system();  // a host that sees the number also sees the rest
    __syncwarp();
    if (lane == 0) *static_cast<volatile std::uint32_t*>(&note.number) = row.number;
}

}  // namespace

void Adjuster::before(const Context& ctx, Tensor logits) const {
    const auto rows = static_cast<std::uint64_t>(logits.rows());
    const OpRecord work{1, logits.bytes() + rows * sizeof(AdjustRow), logits.bytes(),
                        2 * rows * static_cast<std::uint64_t>(vocab_), 0};
    Stamp* const stamp = account(ctx, OpKind::sample, "adjust", work);
    launch(ctx, dim3(static_cast<unsigned>(rows)), dim3(kAdjustThreads), 0, adjust_rows,
           logits.f32(), static_cast<int>(vocab_), state_, stamp);
}

void Adjuster::after(const Context& ctx, Tensor logits, const SampleState& state) const {
    const auto rows = static_cast<std::uint64_t>(logits.rows());
    const OpRecord work{1, rows * (sizeof(AdjustRow) + sizeof(RowBest)), rows * sizeof(DrawNote), 0,
                        0};
    Stamp* const stamp = account(ctx, OpKind::sample, "note", work);
    launch(ctx, dim3(static_cast<unsigned>(rows)), dim3(32), 0, note_rows,
           static_cast<const float*>(logits.f32()), static_cast<int>(vocab_), state_, state, stamp);
}

}  // namespace mr::cuda
