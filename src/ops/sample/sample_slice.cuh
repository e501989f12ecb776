// One row of logits shared by a team of blocks: the slice of each block, and sums over the team.
#pragma once

#include "ops/sample/sample_cuda.h"
#include "ops/sample/sample_team.cuh"

namespace mr::cuda::sampling {

// A block's shared memory, besides its slice of the logits.
struct Work {
    // Read by other blocks of the team.
    float raw_best, best;
    int nan;
    int first_best;   // greedy: the lowest id of the slice that has the best logit
    int found;        // in the first block: the id that another block found
    u32 listed;       // candidates of the slice, of which kListed fit into the list
    u64 softmax_sum;  // over the slice
    u64 partial;
    u64 list[kListed];
    u32 bin_count[kBins];
    u32 bin_low[kBins], bin_high[kBins];  // weight, as two words: shared memory adds 32 bits
    // Used by this block alone.
    u64 space[kWarps];
    SampleRow row;
    u64 step;              // the row's step
    u32 count_to[kBins];   // up to and including each bin, over the whole row
    u64 weight_to[kBins];  //
    u64 sorted[kListed], sums[kListed];
    u64 crossing, crossing_weight;  // the candidate that a descent found
};

// Tokens of a row's ring that are loaded together with the row, before their number is known: as
// many as the usual window has.
constexpr int kFetched = 64;

template <bool kCluster>
class RowSlice {
  public:
    // Logits per block, in multiples of four.
    __host__ __device__ static int slice_of(int vocab, int blocks) {
        return ((vocab + 3) / 4 + blocks - 1) / blocks * 4;
    }
    // One bit per logit: whether the penalty applies.
    __host__ __device__ static int mark_words(int slice) { return (slice + 31) / 32; }

  protected:
    using Blocks = Team<kCluster>;

    // `memory`: shared; in a cluster the slice, f32 [slice_of()], then the marks, u32
    // [mark_words(slice_of())]; a single block keeps no slice, only the marks.
    __device__ RowSlice(Work& work, float* memory, const float* logits, int vocab)
        : work_(work), row_(work.row), raw_(logits), own_(memory), vocab_(vocab) {
        first_ = 0;
        end_ = vocab;
        marks_ = reinterpret_cast<u32*>(memory);
        if constexpr (kCluster) {
            const int each = slice_of(vocab, Blocks::size());
            first_ = min(Blocks::rank() * each, vocab);
            end_ = min(first_ + each, vocab);
            marks_ += each;
        }
    }

    // ---- the slice ----

    __device__ float penalty(float x) const {
        return x > 0 ? x / row_.repeat_penalty : x * row_.repeat_penalty;
    }
    // Logit `id` of the slice after the penalty.
    __device__ float at(int id) const {
        if constexpr (kCluster) return own_[id - first_];
        const float x = raw_[id];  // first_ is 0
        return penalised_ && marks_[id / 32] >> (id % 32) & 1 ? penalty(x) : x;
    }
    // f(id, logit) for this thread's part of the slice. A slice in shared memory ends with up to
    // three -inf, whose ids mean nothing.
    template <typename F>
    __device__ __forceinline__ void each(F f) const {
        if constexpr (kCluster) {
            const float4* quads = reinterpret_cast<const float4*>(own_);
            const int count = (end_ - first_ + 3) / 4;
#pragma unroll 1
            for (int q = thread(); q < count; q += kThreads) {
                const float4 x = quads[q];
                const int id = first_ + 4 * q;
                f(id, x.x);
                f(id + 1, x.y);
                f(id + 2, x.z);
                f(id + 3, x.w);
            }
        } else {
            for (int id = thread(); id < end_; id += kThreads) f(id, at(id));
        }
    }

    __device__ void load(const SampleState& state, int row) {
        constexpr int kRowWords = static_cast<int>(sizeof(SampleRow) / sizeof(u32));
        u32 word = 0;  // a word of the parameters, loaded together with the logits
        u64 steps = 0;
        if (thread() < kRowWords) word = reinterpret_cast<const u32*>(state.rows + row)[thread()];
        if (thread() == 0 && state.steps) steps = state.steps[row];
        recent_ = state.recent + static_cast<std::int64_t>(row) * state.most_recent;
        if (thread() < min(kFetched, state.most_recent)) fetched_ = recent_[thread()];
        const int marks = mark_words(slice_of(vocab_, Blocks::size()));
        for (int i = thread(); i < marks; i += kThreads) marks_[i] = 0;
        work_.bin_count[thread()] = 0;
        if (thread() == 0) work_.listed = 0;
        thread_best_ = -kInfinity;
        nan_ = false;
        const auto see = [&](float x) {
            thread_best_ = fmaxf(thread_best_, x);
            nan_ |= x != x;
        };
        const float* from = raw_ + first_;
        const int count = end_ - first_;
        if constexpr (!kCluster) {
            for (int i = thread(); i < count; i += kThreads) see(from[i]);
        } else if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
            constexpr int kBatch = 5;  // loads in flight per thread
            const float4* quads = reinterpret_cast<const float4*>(from);
            for (int q = thread(); q < count / 4; q += kBatch * kThreads) {
                float4 x[kBatch];
#pragma unroll
                for (int b = 0; b < kBatch; ++b) {
                    if (q + b * kThreads < count / 4) x[b] = __ldcs(quads + q + b * kThreads);
                }
#pragma unroll
                for (int b = 0; b < kBatch; ++b) {
                    if (q + b * kThreads >= count / 4) break;
                    reinterpret_cast<float4*>(own_)[q + b * kThreads] = x[b];
                    see(x[b].x);
                    see(x[b].y);
                    see(x[b].z);
                    see(x[b].w);
                }
            }
            const int i = count / 4 * 4 + thread();
            if (i < count) see(own_[i] = from[i]);
        } else {
#pragma unroll 8
            for (int i = thread(); i < count; i += kThreads) {
                const float x = __ldcs(from + i);
                own_[i] = x;
                see(x);
            }
        }
        if constexpr (kCluster) {
            const int i = count + thread();
            if (i < (count + 3) / 4 * 4) own_[i] = -kInfinity;
        }
        raw_best_ = thread_best_;
        if (thread() < kRowWords) reinterpret_cast<u32*>(&work_.row)[thread()] = word;
        if (thread() == 0) work_.step = steps;
        __syncthreads();
        penalised_ = row_.repeat_penalty != 1.0f && row_.recent_used > 0;
    }

    // Computes from the raw logit, so a token that occurs twice is changed as if it occurred once,
    // in any order. All blocks of the team read all of the ring, and only before they agree on the
    // best: after that the ring may be written.
    __device__ void apply_penalty() {
        if (!penalised_) return;
        constexpr int kBatch = 4;  // loads in flight per thread
        for (int i = thread(); i < row_.recent_used; i += kBatch * kThreads) {
            int id[kBatch];
#pragma unroll
            for (int b = 0; b < kBatch; ++b) {
                const int at = i + b * kThreads;
                id[b] = at < kFetched ? fetched_ : at < row_.recent_used ? recent_[at] : -1;
            }
#pragma unroll
            for (int b = 0; b < kBatch; ++b) mark(id[b]);
        }
        __syncthreads();
        thread_best_ = -kInfinity;
        each([&](int, float x) { thread_best_ = fmaxf(thread_best_, x); });
    }
    __device__ void mark(int id) {
        if (id < first_ || id >= end_) return;
        if constexpr (kCluster) own_[id - first_] = penalty(raw_[id]);
        atomicOr(&marks_[(id - first_) / 32], 1u << ((id - first_) % 32));
    }

    __device__ void agree_on_best() {
        const auto greater = [](float a, float b) { return fmaxf(a, b); };
        const int any_nan = __syncthreads_or(nan_);
        const float raw = warp_reduce(raw_best_, greater);
        const float best = warp_reduce(thread_best_, greater);
        float* space = reinterpret_cast<float*>(work_.space);  // [2, kWarps]
        if (lane() == 0) {
            space[warp()] = raw;
            space[kWarps + warp()] = best;
        }
        __syncthreads();
        if (warp() == 0) {
            const float a = warp_reduce(space[lane() % kWarps], greater);
            const float b = warp_reduce(space[kWarps + lane() % kWarps], greater);
            if (lane() == 0) {
                work_.raw_best = a;
                work_.best = b;
                work_.nan = any_nan;
            }
        }
        Blocks::sync();
        const int from = lane() < Blocks::size() ? lane() : 0;
        raw_best_ = warp_reduce(*Blocks::of(&work_.raw_best, from), greater);
        best_ = warp_reduce(*Blocks::of(&work_.best, from), greater);
        nan_ = __any_sync(kAllLanes, *Blocks::of(&work_.nan, from));
    }

    // ---- sums over the team ----

    // The sum of one value of each block.
    __device__ u64 sum_of_blocks(u64* theirs) const {
        const u64 x = lane() < Blocks::size() ? *Blocks::of(theirs, lane()) : 0;
        return warp_reduce(x, [](u64 a, u64 b) { return a + b; });
    }
    __device__ u64 team_sum(u64 x) {
        x = block_sum(x, work_.space);
        Blocks::sync();  // all blocks have read the previous sum
        if (thread() == 0) work_.partial = x;
        Blocks::sync();
        return sum_of_blocks(&work_.partial);
    }
    // The sum of this thread's bin over the team.
    __device__ u32 merged_count() const {
        u32 sum = 0;
#pragma unroll 8
        for (int r = 0; r < Blocks::size(); ++r) sum += Blocks::of(work_.bin_count, r)[thread()];
        return sum;
    }
    __device__ u64 merged_weight() const {
        u64 sum = 0;
#pragma unroll 4
        for (int r = 0; r < Blocks::size(); ++r) {
            sum += u64{Blocks::of(work_.bin_high, r)[thread()]} << 32 |
                   Blocks::of(work_.bin_low, r)[thread()];
        }
        return sum;
    }
    __device__ void add_to_bin(int bin, u64 weight) {
        atomicAdd(&work_.bin_count[bin], 1u);
        const u32 low = static_cast<u32>(weight);
        const u32 before = atomicAdd(&work_.bin_low[bin], low);
        const u32 high = static_cast<u32>(weight >> 32) + (before + low < low ? 1u : 0u);
        if (high) atomicAdd(&work_.bin_high[bin], high);
    }
    __device__ void clear_bins() {
        Blocks::sync();  // the previous histogram has been read
        work_.bin_count[thread()] = work_.bin_low[thread()] = work_.bin_high[thread()] = 0;
        __syncthreads();
    }

    // ---- the confidence: softmax of the raw logits at temperature 1, in units of 2^-40 ----

    __device__ u64 softmax_weight(float x) const {
        const float distance =
            raw_best_ < kInfinity ? fminf(x - raw_best_, 0.0f) : (x == kInfinity ? 0 : -kInfinity);
        return __float2ull_rn(__expf(distance) * 0x1p40f);
    }
    // `sum` is this thread's sum of softmax_weight() over each(). Logits that the penalty has
    // changed count with their raw value.
    __device__ void keep_softmax_sum(u64 sum) {
        if (penalised_) {
            const int marks = mark_words(end_ - first_);
            for (int i = thread(); i < marks; i += kThreads) {
                for (u32 bits = marks_[i]; bits != 0; bits &= bits - 1) {
                    const float was = raw_[first_ + 32 * i + __ffs(static_cast<int>(bits)) - 1];
                    sum += softmax_weight(was) - softmax_weight(penalty(was));
                }
            }
        }
        sum = block_sum(sum, work_.space);
        if (thread() == 0) work_.softmax_sum = sum;
    }
    // `x`: the logit of `id` after the penalty.
    __device__ float confidence(int id, float x, u64 sum) const {
        if (penalised_) x = raw_[id];
        double weight = exp(static_cast<double>(x) - static_cast<double>(raw_best_));
        if (raw_best_ == kInfinity) weight = x == kInfinity ? 1 : 0;
        return static_cast<float>(weight * 0x1p40 / static_cast<double>(sum));
    }

    Work& work_;
    const SampleRow& row_;
    const float* raw_;  // [vocab]
    float* own_;
    u32* marks_;
    int vocab_, first_, end_;               // the slice: [first_, end_)
    const std::int32_t* recent_ = nullptr;  // the row's ring of recent tokens
    std::int32_t fetched_ = -1;             // this thread's token of the first kFetched
    bool penalised_ = false;
    bool nan_ = false;
    float thread_best_ = 0;  // of this thread, after the penalty
    float raw_best_ = 0, best_ = 0;
};

}  // namespace mr::cuda::sampling
