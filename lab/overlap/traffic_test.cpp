#include "lab/overlap/traffic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "model/io/random.h"

namespace mr::overlap {
namespace {

std::uint64_t sum_of(const std::vector<std::uint64_t>& values) {
    return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
}

TEST(Overlap, TheTiedTableOfGpt2ComesLast) {
    const model::ParamLayout layout = model::param_layout(model::random_shape("random:gpt2").first);
    const std::vector<ReadyRange> order = backward_order(layout);
    // The final norm, twelve layers with two ranges each, the tables.
    ASSERT_EQ(order.size(), 1u + 24 + 1);
    EXPECT_TRUE(order.back().last);
    EXPECT_EQ(order.back().begin, 0);
    for (std::size_t i = 0; i + 1 < order.size(); ++i) EXPECT_FALSE(order[i].last) << i;
    EXPECT_GT(order[1].begin, order[3].begin);  // the last layer is ready first
    const ReadyBytes bytes = ready_bytes(order);
    EXPECT_EQ(bytes.all, static_cast<std::uint64_t>(layout.count) * 4);
    EXPECT_EQ(bytes.all - bytes.before_last, order.back().bytes());
    // 50,304 rows of the table (50,257, padded to whole tiles) and 1,024 positions.
    EXPECT_EQ(order.back().bytes(), (50'304u + 1'024) * 768 * 4);
    EXPECT_NEAR(static_cast<double>(bytes.before_last), 340e6, 1e6);
    EXPECT_NEAR(static_cast<double>(bytes.all), 498e6, 1e6);
}

TEST(Overlap, AHeadOfItsOwnIsReadyFirst) {
    const model::ParamLayout layout =
        model::param_layout(model::random_shape("random:tinyllama-1.1b").first);
    const std::vector<ReadyRange> order = backward_order(layout);
    EXPECT_GE(order[0].bytes() + order[1].bytes(), std::uint64_t{32'000} * 2048 * 4);
    std::int64_t last = 0, covered = 0;
    for (const ReadyRange& range : order) {
        covered += range.end - range.begin;
        if (range.last) last += range.end - range.begin;
    }
    EXPECT_EQ(covered, layout.count);
    EXPECT_EQ(last, std::int64_t{32'000} * 2048);
}

TEST(Overlap, BucketsEndWhenTheyAreFull) {
    using Ends = std::vector<std::size_t>;
    const std::vector<std::int64_t> counts = {10, 1, 25, 25, 1, 1};
    EXPECT_EQ(bucket_ends(counts, 4), (Ends{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(bucket_ends(counts, 100), (Ends{3, 4, 6}));
    EXPECT_EQ(bucket_ends(counts, 144), (Ends{3, 6}));
    EXPECT_EQ(bucket_ends(counts, 1 << 20), (Ends{6}));
    EXPECT_EQ(bucket_ends({}, 100), Ends{});
}

TEST(Overlap, RoundsHaveAllBytesOnce) {
    std::vector<std::byte> from(10'007), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
    const std::vector<Copy> copies = {{to.data(), from.data(), 5},
                                      {to.data() + 5, from.data() + 5, 9'000},
                                      {to.data() + 9'005, from.data() + 9'005, 1'002}};
    for (const int rounds : {1, 2, 7, 100}) {
        std::fill(to.begin(), to.end(), std::byte{0});
        const auto cut = in_rounds(copies, rounds);
        ASSERT_EQ(cut.size(), static_cast<std::size_t>(rounds));
        for (const std::vector<Copy>& round : cut) {
            EXPECT_LE(bytes_of(round), from.size() / static_cast<std::size_t>(rounds) + 512);
            for (const Copy& copy : round) {
                EXPECT_GT(copy.bytes, 0u);
                std::memcpy(copy.to, copy.from, copy.bytes);
            }
        }
        EXPECT_EQ(to, from) << rounds;
    }
    EXPECT_EQ(in_rounds({}, 3).size(), 3u);
}

TEST(Overlap, RoundsAddUpToTheLinksTime) {
    const std::vector<std::uint64_t> slow = round_times(22'020'096, 50e9);
    EXPECT_EQ(sum_of(slow), 440'402u);  // ns
    EXPECT_EQ(slow.size(), 4u);
    const std::vector<std::uint64_t> fast = round_times(22'020'096, 400e9);
    EXPECT_EQ(sum_of(fast), 55'050u);
    EXPECT_EQ(fast.size(), 1u);
    EXPECT_EQ(round_times(0, 50e9), std::vector<std::uint64_t>{0});
    for (const std::uint64_t time : slow) EXPECT_NEAR(static_cast<double>(time), 1.1e5, 1e3);
}

TEST(Overlap, Hidden) {
    // 40 ms of compute, 10 of communication, 4 of them for the last operation.
    Times t{.compute = 40e-3, .communication = 10e-3, .both = 44e-3, .ready = 6e-3, .last = 4e-3};
    EXPECT_NEAR(t.hidden(), 0.6, 1e-12);
    EXPECT_NEAR(t.hidden_of_ready(), 1, 1e-12);
    t.both = 50e-3;  // one after the other
    EXPECT_NEAR(t.hidden(), 0, 1e-12);
    EXPECT_NEAR(t.hidden_of_ready(), 0, 1e-12);
    t.both = 47e-3;
    EXPECT_NEAR(t.hidden_of_ready(), 0.5, 1e-12);
    t.both = 51e-3;  // even slower: reported, not clamped
    EXPECT_LT(t.hidden(), 0);
    // If communication is the longer part, compute is what is hidden.
    const Times long_link{.compute = 10e-3, .communication = 40e-3, .both = 40e-3};
    EXPECT_NEAR(long_link.hidden(), 1, 1e-12);
    EXPECT_EQ(long_link.hidden_of_ready(), 0);
}

TEST(Overlap, GhostsHaveValuesOfTheirOwn) {
    EXPECT_EQ(ghost_value(3, 17), ghost_value(3, 17));
    EXPECT_NE(ghost_value(3, 17), ghost_value(4, 17));
    EXPECT_NE(ghost_value(3, 17), ghost_value(3, 18));
    double most = 0, sum = 0;
    for (std::int64_t i = 0; i < 10'000; ++i) {
        most = std::max(most, std::abs(double{ghost_value(1, i)}));
        sum += double{ghost_value(1, i)};
    }
    EXPECT_LE(most, 0x1p-10);
    EXPECT_GT(most, 0.9 * 0x1p-10);
    EXPECT_LT(std::abs(sum) / 10'000, 1e-4);
}

// Plays the device on the host: all copies and sums of all buckets.
class Simulated {
  public:
    Simulated(const std::vector<std::int64_t>& counts, int rank, int ranks,
              std::int64_t bucket_bytes)
        : pool_(2), rank_(rank), ranks_(ranks) {
        const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        own_.resize(static_cast<std::size_t>(all));
        for (std::size_t i = 0; i < own_.size(); ++i) {
            own_[i] = ghost_value(99, static_cast<std::int64_t>(i));
        }
        flat_ = own_;
        // Ranges come from the end of the buffer to its beginning, as in a backward pass.
        std::int64_t end = all;
        for (const std::int64_t count : counts) {
            end -= count;
            gradients_.push_back({flat_.data() + end, comm::Shards(count, 4, ranks), end});
        }
        sizes_ = ghost_sizes(gradients_, rank);
        sums_ = expected_sums(own_, rank, ranks, pool_);
        parts_ = recorded_parts(gradients_, rank, pool_);
        others_ = shares_of_others(gradients_, rank, sums_);
        const auto room = [](std::int64_t count) {
            return std::vector<float>(static_cast<std::size_t>(count), NAN);
        };
        got_parts_ = room(sizes_.others);
        got_sums_ = room(sizes_.parts);
        arrived_ = room(sizes_.parts);
        packed_ = room(sizes_.own);
        buckets_ = plan_buckets(gradients_, rank,
                                {.parts = parts_.data(),
                                 .sums = others_.data(),
                                 .got_parts = got_parts_.data(),
                                 .got_sums = got_sums_.data(),
                                 .arrived = arrived_.data(),
                                 .packed = packed_.data()},
                                bucket_bytes, 50e9);
    }

    void exchange() {
        for (const Bucket& bucket : buckets_) {
            run(bucket.scatter);
            for (const comm::SumPiece& sum : bucket.sums) add(sum);
            run(bucket.gather);
        }
    }
    void expect_sums() const {
        EXPECT_EQ(std::memcmp(flat_.data(), sums_.data(), 4 * flat_.size()), 0);
        const std::vector<float> left = shares_of_others(gradients_, rank_, own_);
        EXPECT_EQ(left, got_parts_);
        for (const float value : got_sums_) EXPECT_FALSE(std::isnan(value));
    }
    // Each direction carries 2 (n - 1) / n of the gradients.
    void expect_bytes() const {
        std::uint64_t out = 0, in = 0;
        for (const Bucket& bucket : buckets_) {
            out += bucket.scatter.out_bytes + bucket.gather.out_bytes;
            in += bucket.scatter.in_bytes + bucket.gather.in_bytes;
        }
        EXPECT_EQ(out, in);
        EXPECT_EQ(out, 4 * static_cast<std::uint64_t>(sizes_.others + sizes_.parts));
        EXPECT_EQ(buckets_.back().end, gradients_.size());
    }

  private:
    static void run(const Phase& phase) {
        for (std::size_t round = 0; round < phase.times.size(); ++round) {
            for (const auto* copies : {&phase.out[round], &phase.in[round]}) {
                for (const Copy& copy : *copies) std::memcpy(copy.to, copy.from, copy.bytes);
            }
        }
    }
    void add(const comm::SumPiece& sum) const {
        std::vector<std::vector<float>> room;
        std::vector<float*> parts;
        for (int r = 0; r < ranks_; ++r) {
            const float* from =
                r == rank_ ? sum.own : sum.parts + (r < rank_ ? r : r - 1) * sum.count;
            room.emplace_back(from, from + sum.count);
        }
        for (std::vector<float>& part : room) parts.push_back(part.data());
        comm::tree_sum(parts, sum.count);
        std::copy_n(parts[0], sum.count, sum.own);
        std::copy_n(parts[0], sum.count, sum.packed);
    }

    ThreadPool pool_;
    int rank_, ranks_;
    std::vector<float> own_, flat_, sums_, parts_, others_;
    std::vector<float> got_parts_, got_sums_, arrived_, packed_;
    std::vector<Gradient> gradients_;
    GhostSizes sizes_;
    std::vector<Bucket> buckets_;
};

TEST(Overlap, AnExchangeWithGhostsGivesTheTreeOverRanks) {
    for (const int ranks : {2, 4, 8, 64}) {
        for (const int rank : {0, 1, ranks / 2, ranks - 1}) {
            for (const std::int64_t bucket : {4, 1'000, 40'000, 1 << 24}) {
                SCOPED_TRACE(testing::Message() << rank << " of " << ranks << ", " << bucket);
                Simulated exchange({1, 1'000, 3, 40'007, 64, 9'999}, rank, ranks, bucket);
                exchange.exchange();
                exchange.expect_sums();
                exchange.expect_bytes();
            }
        }
    }
}

}  // namespace
}  // namespace mr::overlap
