// One row of logits, one token: the steps of a team of blocks.
//
//   1. Each block loads its slice of the row into shared memory, once; the team agrees on the best.
//   2. With top-k: the k-th best of the threads' own maxima bounds the k-th best logit from below.
//      The logits at or above the bound are a short list with the winner in it, for any row a model
//      makes. Without top-k: a histogram of counts and weights bounds the candidates that top-p and
//      min-p may keep.
//   3. A list of up to 512 is gathered in one block and ranked, each thread one candidate against
//      all; the rest is a scan over weights.
//   4. Where the list would be longer (flat rows, ties, large k), a histogram descent first finds
//      the few candidates among which a boundary lies.
//
// Counts and weights are integers, so the bits do not depend on the distribution of the work.
#pragma once

#include "core/philox.h"
#include "ops/sample/sample_slice.cuh"

namespace mr::cuda::sampling {

struct Drawn {
    int id;
    float probability, confidence;
    u32 flags;
    u64 softmax = 0;  // sum over the row, in units of 2^-40 of the best one's weight
};

// kGuess: for diffusion: draws have a step, and
// the sum is returned (ops/denoise/denoise.cu).
template <bool kCluster, bool kGuess = false>
class RowDraw : protected RowSlice<kCluster> {
  protected:
    using Slice = RowSlice<kCluster>;
    using Slice::add_to_bin, Slice::clear_bins, Slice::merged_count, Slice::merged_weight;
    using Slice::best_, Slice::thread_best_, Slice::nan_;
    using Slice::confidence, Slice::keep_softmax_sum, Slice::softmax_weight;
    using Slice::each, Slice::at, Slice::team_sum, Slice::sum_of_blocks;
    using Slice::raw_best_, Slice::raw_;
    using Slice::work_, Slice::row_, Slice::vocab_, Slice::first_, Slice::end_;
    using typename Slice::Blocks;

  public:
    using Slice::mark_words;
    using Slice::slice_of;
    __device__ RowDraw(Work& work, float* memory, const float* logits, int vocab)
        : Slice(work, memory, logits, vocab) {}

    // The result is valid in the first thread of the first block.
    template <bool kGreedy>
    __device__ Drawn draw(const SampleState& state, int row) {
        Slice::load(state, row);
        if (!row_.active) return {0, 0, 0, kSampleInactive};
        Slice::apply_penalty();
        Slice::agree_on_best();
        Drawn drawn{0, 0, 0, 0};
        if (nan_ || !(best_ > -kInfinity)) {
            drawn.flags = nan_ ? kSampleNan : kSampleNone;
        } else if (kGreedy && row_.temperature > 0) {
            drawn.flags = kSampleKind;
        } else if (kGreedy || row_.temperature == 0) {
            drawn = most_probable();
        } else if constexpr (!kGreedy) {
            return sampled();
        }
        Blocks::sync();  // no block may exit while another reads its memory
        return drawn;
    }

  protected:
    // ---- greedy ----

    __device__ Drawn most_probable() {
        u64 sum = 0;
        int id = vocab_;
        each([&](int i, float x) {
            sum += softmax_weight(x);
            if (x == best_) id = min(id, i);
        });
        keep_softmax_sum(sum);
        const auto lower = [](int a, int b) { return min(a, b); };
        id = warp_reduce(id, lower);
        int* space = reinterpret_cast<int*>(work_.space);
        __syncthreads();
        if (lane() == 0) space[warp()] = id;
        __syncthreads();
        if (warp() == 0) {
            id = warp_reduce(space[lane() % kWarps], lower);
            if (lane() == 0) work_.first_best = id;
        }
        Blocks::sync();
        if (Blocks::rank() != 0 || warp() != 0) return {};
        const int from = lane() < Blocks::size() ? lane() : 0;
        id = warp_reduce(*Blocks::of(&work_.first_best, from), lower);
        if constexpr (kGuess) {
            const u64 all = sum_of_blocks(&work_.softmax_sum);
            return {id, 1.0f, confidence(id, best_, all), 0, all};
        }
        return {id, 1.0f, confidence(id, best_, sum_of_blocks(&work_.softmax_sum)), 0};
    }

    // ---- sampling ----

    __device__ Drawn sampled() {
        const Weigher weigh(best_, row_.temperature);
        const bool top_k = row_.top_k > 0 && row_.top_k < vocab_;
        if (top_k && list_the_best()) return among_front(weigh, 0);
        fill_row_bins(weigh, !top_k);
        if (!top_k && list_the_front()) return among_front(weigh, work_.weight_to[kTail]);
        return by_descent(weigh, top_k);
    }

    // Lists the candidates of the slice in bins up to `last`.
    __device__ void push(int id, float x) {
        const u32 slot = atomicAdd(&work_.listed, 1u);
        if (slot < kListed) work_.list[slot] = candidate(x, id);
    }
    __device__ u64 team_listed() const {
        const u64 mine = lane() < Blocks::size() ? *Blocks::of(&work_.listed, lane()) : 0u;
        return warp_reduce(mine, [](u64 a, u64 b) { return a + b; });
    }

    // Lists a front of the row that holds the k best. False if it would be too long.
    __device__ bool list_the_best() {
        // Bins of 1/16 nat, but never coarser than 1/16 logit at high temperatures, so that the
        // list stays short.
        const Bins bins{best_, 16 / fminf(row_.temperature, 1.0f)};
        const int bin = bins(thread_best_);
        if (bin < kTail) atomicAdd(&work_.bin_count[bin], 1u);
        Blocks::sync();
        const u64 to = block_scan(merged_count(), work_.space);
        int last = __syncthreads_count(to < static_cast<u64>(row_.top_k));
        // Fewer than k threads have a candidate outside of the tail. Candidates in the tail have no
        // weight, if the bins are in nats.
        const bool known = last < kTail || row_.temperature <= 1.0f;
        last = min(last, kTail - 1);
        const float limit = static_cast<float>(last + 1);
        u64 sum = 0;
        each([&](int id, float x) {
            sum += softmax_weight(x);
            if ((best_ - x) * bins.scale < limit || x == best_) push(id, x);
        });
        keep_softmax_sum(sum);
        Blocks::sync();
        return known && team_listed() <= kListed;
    }

    // The histogram of the row in bins of 1/16 nat, and its sums.
    __device__ void fill_row_bins(const Weigher& weigh, bool softmax) {
        const Bins bins = row_bins();
        clear_bins();
        u64 sum = 0;
        each([&](int, float x) {
            if (softmax) sum += softmax_weight(x);
            const int bin = bins(x);
            if (bin < kTail) add_to_bin(bin, weigh(x));
        });
        if (softmax) keep_softmax_sum(sum);
        Blocks::sync();
        const u64 counts = block_scan(merged_count(), work_.space);
        const u64 weights = block_scan(merged_weight(), work_.space);
        work_.count_to[thread()] = static_cast<u32>(counts);
        work_.weight_to[thread()] = weights;
        __syncthreads();
    }
    __device__ Bins row_bins() const { return {best_, 16 / row_.temperature}; }

    // Without top-k: lists the front beyond which top-p and min-p keep nothing.
    __device__ bool list_the_front() {
        int last = kTail - 1;
        const u64 wanted = part_of(work_.weight_to[kTail]);
        last = min(last, __syncthreads_count(work_.weight_to[thread()] < wanted));
        if (row_.min_p > 0) {
            // One bin more, for the rounding errors.
            last = min(last, static_cast<int>(-16 * logf(row_.min_p)) + 1);
        }
        if (work_.count_to[last] > kListed) return false;
        const Bins bins = row_bins();
        list([&](float x) { return bins(x) <= last; });
        return true;
    }

    template <typename In>
    __device__ void list(In in) {
        Blocks::sync();  // the previous list has been read
        if (thread() == 0) work_.listed = 0;
        __syncthreads();
        each([&](int id, float x) {
            if (in(x)) push(id, x);
        });
        Blocks::sync();
    }

    // The part of `whole` that top-p keeps: at least 1, so that one token stays.
    __device__ u64 part_of(u64 whole) const {
        if (row_.top_p >= 1.0f) return whole;
        const double part = ceil(static_cast<double>(row_.top_p) * static_cast<double>(whole));
        return min(max(static_cast<u64>(part), u64{1}), whole);
    }
    // The cumulative weight that the draw selects: the first candidate that reaches it is drawn.
    __device__ u64 target_in(u64 kept) const {
        const u64 step = kGuess ? static_cast<u64>(row_.step) : 0;
        const u32 word = philox(row_.seed, static_cast<u64>(row_.position), step)[0];
        return __umul64hi(u64{word >> 8} << 40, kept) + 1;  // u * kept, u of 24 bits, exactly
    }

    // Collects the team's lists and sorts them: thread i gets the i-th best, threads from `count`
    // on get 0. The lists are free again after the next sync of the team.
    __device__ u64 ranked(int* count) {
        const int listed =
            lane() < Blocks::size() ? static_cast<int>(*Blocks::of(&work_.listed, lane())) : 0;
        int from = 0, rank = -1, before = 0;
        for (int r = 0; r < Blocks::size(); ++r) {
            const int theirs = __shfl_sync(kAllLanes, listed, r);
            if (thread() >= before && thread() < before + theirs) {
                rank = r;
                from = thread() - before;
            }
            before += theirs;
        }
        *count = before;
        const u64 mine = rank < 0 ? 0 : Blocks::of(work_.list, rank)[from];
        work_.sums[thread()] = mine;
        __syncthreads();
        int place = 0;
#pragma unroll 8
        for (int i = 0; i < before; ++i) place += work_.sums[i] > mine ? 1 : 0;
        if (rank >= 0) work_.sorted[place] = mine;
        __syncthreads();
        return thread() < before ? work_.sorted[thread()] : 0;
    }

    // The first block draws from the list; the others are done. `whole` is the total weight that
    // top-p refers to, if already known; 0: that of the k best, which are on the list.
    __device__ Drawn among_front(const Weigher& weigh, u64 whole) {
        int count = 0;
        u64 mine = 0, softmax = 0;
        if (Blocks::rank() == 0) {
            mine = ranked(&count);
            softmax = sum_of_blocks(&work_.softmax_sum);
        }
        Blocks::sync();  // the memory of other blocks has been read
        if (Blocks::rank() != 0) return {};
        const float x = logit_of(key_in(mine));
        const bool there = thread() < count && (whole > 0 || thread() < row_.top_k);
        const u64 weight = there ? weigh(x) : 0;
        const u64 to = block_scan(weight, work_.space);
        work_.sums[thread()] = to;
        const int by_min_p =
            __syncthreads_count(there && (row_.min_p == 0 || !weigh.below(x, row_.min_p)));
        const u64 wanted = part_of(whole > 0 ? whole : work_.sums[kListed - 1]);
        const int by_top_p = __syncthreads_count(to < wanted) + 1;
        const u64 kept = work_.sums[min(max(min(by_min_p, by_top_p), 1), kListed) - 1];
        const u64 target = target_in(kept);
        const int drawn = __syncthreads_count(to < target);
        if (warp() != 0) return {};
        const u64 its = work_.sums[drawn] - (drawn > 0 ? work_.sums[drawn - 1] : 0);
        return result(work_.sorted[drawn], its, kept, softmax);
    }

    __device__ Drawn result(u64 drawn, u64 weight, u64 kept, u64 softmax) const {
        const double probability = static_cast<double>(weight) / static_cast<double>(kept);
        return {id_in(drawn), static_cast<float>(probability),
                confidence(id_in(drawn), logit_of(key_in(drawn)), softmax), 0,
                kGuess ? softmax : 0};
    }

    // ---- by descent: for any row, even flat ones ----

    __device__ Drawn by_descent(const Weigher& weigh, bool top_k) {
        u64 kept = work_.weight_to[kTail];
#pragma unroll 1
        for (int stage = 0; stage < 3; ++stage) {  // top-k, top-p, the draw; not unrolled
            if ((stage == 0 && !top_k) || (stage == 1 && row_.top_p >= 1.0f)) continue;
            if (stage == 2 && row_.min_p > 0) kept = min(kept, weight_left_by_min_p(weigh));
            const u64 want = stage == 0   ? static_cast<u64>(row_.top_k)
                             : stage == 1 ? part_of(kept)
                                          : target_in(kept);
            const u64 to = cross(weigh, stage == 0, want, stage == 2);
            if (stage < 2) kept = to;
        }
        const u64 softmax = sum_of_blocks(&work_.softmax_sum);
        Blocks::sync();
        if (Blocks::rank() != 0 || warp() != 0) return {};
        return result(work_.crossing, work_.crossing_weight, kept, softmax);
    }

    __device__ u64 weight_left_by_min_p(const Weigher& weigh) {
        const Bins bins = row_bins();
        const u32 least = first_key(key_of(-kInfinity), key_of(best_), [&](u32 key) {
            return !weigh.below(logit_of(key), row_.min_p);
        });
        const int bin = bins(logit_of(least));
        if (bin >= kTail) return work_.weight_to[kTail];
        u64 sum = 0;
        each([&](int, float x) {
            if (bins(x) == bin && key_of(x) >= least) sum += weigh(x);
        });
        return team_sum(sum) + (bin > 0 ? work_.weight_to[bin - 1] : 0);
    }

    // The first candidate, in order, with which the count (or the weight) reaches `want`: returns
    // the weight up to and including it, and leaves it and its own weight in work_. Its id is valid
    // in the first block, where it is needed.
    __device__ u64 cross(const Weigher& weigh, bool by_count, u64 want, bool want_id) {
        const u64 reach = by_count ? work_.count_to[thread()] : work_.weight_to[thread()];
        int bin = __syncthreads_count(reach < want);
        if (bin >= kTail) return work_.weight_to[kTail];  // the tail has no weight
        u32 count_before = bin > 0 ? work_.count_to[bin - 1] : 0;
        u64 weight_before = bin > 0 ? work_.weight_to[bin - 1] : 0;
        u32 count = work_.count_to[bin] - count_before;
        const Bins bins = row_bins();
        const u32 least = key_of(-kInfinity), most = key_of(best_);
        u32 low = first_key(least, most, [&](u32 key) { return bins(logit_of(key)) <= bin; });
        u32 high = bin == 0 ? most : first_key(least, most, [&](u32 key) {
                                         return bins(logit_of(key)) < bin;
                                     }) - 1;
        while (true) {
            const auto inside = [&](float x) { return key_of(x) >= low && key_of(x) <= high; };
            if (count <= kListed) {
                list(inside);
                int listed = 0;
                const u64 mine = ranked(&listed);
                const u64 weight = thread() < listed ? weigh(logit_of(key_in(mine))) : 0;
                const u64 to = weight_before + block_scan(weight, work_.space);
                work_.sums[thread()] = to;
                const int by_weight = __syncthreads_count(to < want);
                const int at = by_count ? static_cast<int>(want - count_before) - 1 : by_weight;
                const u64 crossed = work_.sums[at];
                if (thread() == 0) {
                    work_.crossing = work_.sorted[at];
                    work_.crossing_weight = crossed - (at > 0 ? work_.sums[at - 1] : weight_before);
                }
                __syncthreads();
                return crossed;
            }
            if (low == high) {  // all equal, in the order of their ids
                const u64 weight = weigh(logit_of(low));
                const u64 nth =
                    by_count ? want - count_before : (want - weight_before + weight - 1) / weight;
                const int id = want_id ? nth_alike(low, nth) : 0;
                if (thread() == 0) {
                    work_.crossing = candidate(logit_of(low), id);
                    work_.crossing_weight = weight;
                }
                __syncthreads();
                return weight_before + nth * weight;
            }
            const int shift = max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits);
            clear_bins();
            each([&](int, float x) {
                if (inside(x)) add_to_bin(static_cast<int>((high - key_of(x)) >> shift), weigh(x));
            });
            Blocks::sync();
            const u64 counts = block_scan(merged_count(), work_.space);
            const u64 weights = block_scan(merged_weight(), work_.space);
            work_.sorted[thread()] = counts;
            work_.sums[thread()] = weights;
            bin = __syncthreads_count(by_count ? count_before + counts < want
                                               : weight_before + weights < want);
            const u32 skipped = bin > 0 ? static_cast<u32>(work_.sorted[bin - 1]) : 0;
            count = static_cast<u32>(work_.sorted[bin]) - skipped;
            count_before += skipped;
            weight_before += bin > 0 ? work_.sums[bin - 1] : 0;
            __syncthreads();
            high -= static_cast<u32>(bin) << shift;
            low = max(low, high - min(high, (1u << shift) - 1));
        }
    }

    // The id of the nth (from 1) logit with this key; valid in the first block.
    __device__ int nth_alike(u32 key, u64 nth) {
        u64 mine = 0;
        each([&](int, float x) { mine += key_of(x) == key ? 1 : 0; });
        mine = block_sum(mine, work_.space);
        Blocks::sync();
        if (thread() == 0) work_.partial = mine;
        Blocks::sync();
        u64 before = 0;
        for (int r = 0; r < Blocks::rank(); ++r) before += *Blocks::of(&work_.partial, r);
        if (before < nth && nth <= before + mine) {
            for (int base = first_; base < end_; base += kThreads) {
                const int id = base + thread();
                const bool alike = id < end_ && key_of(at(id)) == key;
                const u64 to = before + block_scan(alike ? 1 : 0, work_.space);
                if (alike && to == nth) *Blocks::of(&work_.found, 0) = id;
                before += static_cast<u64>(__syncthreads_count(alike));
                if (before >= nth) break;
            }
        }
        Blocks::sync();
        return work_.found;
    }
};

// The dynamic shared memory of a block of a row's team, beside Work.
inline std::size_t slice_bytes(std::int64_t vocab, int team) {
    const int slice = RowDraw<true>::slice_of(static_cast<int>(vocab), team);
    return sizeof(u32) * static_cast<std::size_t>(RowDraw<true>::mark_words(slice)) +
           (team > 1 ? sizeof(float) * static_cast<std::size_t>(slice) : 0);
}
// The fastest team. Small vocabularies take less time than two cluster barriers.
inline int usual_team(std::int64_t vocab) {
    constexpr std::int64_t kSmallVocab = 8192;
    return vocab >= kSmallVocab && sample_team_fits(vocab, 8) ? 8 : 1;
}

}  // namespace mr::cuda::sampling
