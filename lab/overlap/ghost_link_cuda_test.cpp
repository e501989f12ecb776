// Exchanges with ghosts give the bits of the tree over ranks, at the rate of the link.
#include <chrono>
#include <cstring>
#include <thread>

#include "core/cuda/testing.h"
#include "lab/overlap/ghost_exchange.h"
#include "lab/overlap/kernels.h"
#include "lab/overlap/overlap.h"
#include "model/io/random.h"
#include "model/train/params.h"

namespace mr::overlap {
namespace {

class GhostLinkTest : public cuda::GpuTest {
  protected:
    // A flat buffer of gradients, in ranges from its end to its beginning.
    struct Flat {
        std::vector<float> own, sums;
        float* device = nullptr;
        std::vector<Gradient> gradients;
    };
    Flat flat(const std::vector<std::int64_t>& counts, int rank, int ranks) {
        Flat out;
        std::int64_t end = 0;
        for (const std::int64_t count : counts) end += count;
        out.own = normal(static_cast<std::size_t>(end), 1e-3f);
        out.sums = expected_sums(out.own, rank, ranks, pool_);
        out.device = upload<float>(std::span<const float>(out.own));
        for (const std::int64_t count : counts) {
            end -= count;
            out.gradients.push_back({out.device + end, comm::Shards(count, 256, ranks), end});
        }
        return out;
    }
    void reset(const Flat& f) {
        stream_->to_device(f.device, f.own.data(), f.own.size() * 4, nullptr);
        stream_->synchronize();
    }
    // Uses the trainer's exchange.
    void expect_exchange(GhostLink& link, const Flat& f, int rank, int ranks) {
        GhostExchange exchange(rank, ranks);
        exchange.use(&link);
        for (const Gradient& g : f.gradients) exchange.add_up(g.elements, g.shards, true);
        exchange.finish();
        const std::vector<float> got = download(f.device, f.own.size());
        EXPECT_EQ(std::memcmp(got.data(), f.sums.data(), 4 * got.size()), 0);
        EXPECT_NO_THROW(link.require_left(f.own, f.sums));
    }

    ThreadPool pool_{2};
};

TEST_F(GhostLinkTest, GivesTheTreeOverRanks) {
    const std::vector<std::int64_t> counts = {64, 1'000'003, 5, 3'000'000, 4096};
    for (const bool host : {true, false}) {
        for (const int ranks : {2, 8, 64}) {
            for (const int rank : {0, ranks - 1}) {
                const Flat f = flat(counts, rank, ranks);
                for (const std::int64_t bucket : {1 << 20, 1 << 26}) {
                    SCOPED_TRACE(testing::Message() << rank << " of " << ranks << ", host " << host
                                                    << ", bucket " << bucket);
                    GhostLink link(
                        *stream_, f.gradients,
                        {.rate = 40e9, .host = host, .rank = rank, .bucket_bytes = bucket});
                    link.record(f.sums, pool_);
                    for (int i = 0; i < 3; ++i) {
                        reset(f);
                        link.poison();
                        expect_exchange(link, f, rank, ranks);
                    }
                }
                memory_.reset();
            }
        }
    }
}

TEST_F(GhostLinkTest, IsNotFasterThanTheLink) {
    const Flat f = flat({8'000'000, 64, 24'000'000}, 0, 8);
    for (const bool host : {true, false}) {
        for (const double rate : {5e9, 20e9}) {
            GhostLink link(*stream_, f.gradients,
                           {.rate = rate, .host = host, .bucket_bytes = std::int64_t{8} << 20});
            link.record(f.sums, pool_);
            const std::size_t all = link.buckets().size();
            link.alone(0, all);
            const double seconds = link.alone(0, all);
            EXPECT_GE(seconds, 0.98 * link.link_seconds()) << rate;
            EXPECT_LE(seconds, 1.25 * link.link_seconds() + 1e-3) << rate;
            EXPECT_EQ(link.alone(1, 1), 0);
        }
    }
}

// Gradients come late, after a kernel that is held back: an exchange that did not wait would send
// NaN.
TEST_F(GhostLinkTest, WaitsForTheGradients) {
    const Flat f = flat({2'000'000}, 0, 4);
    const float* const late = upload<float>(std::span<const float>(f.own));
    std::uint32_t* const stop = memory_.array<std::uint32_t>(1);
    auto* const held = memory_.array<unsigned long long>(1);
    stream_->fill(stop, 0, sizeof *stop);
    stream_->fill(held, 0, sizeof *held);
    for (const bool host : {true, false}) {
        GhostLink link(*stream_, f.gradients, {.rate = 40e9, .host = host});
        link.record(f.sums, pool_);
        link.poison();
        stream_->fill(f.device, 0xff, f.own.size() * 4);
        stream_->synchronize();
        const std::uint32_t number = host ? 1 : 2;
        launch_occupy(*stream_, 1, stop, number, held);
        stream_->on_device(f.device, late, f.own.size() * 4);
        GhostExchange exchange(0, 4);
        exchange.use(&link);
        exchange.add_up(f.device, f.gradients[0].shards, true);
        exchange.finish();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        const cuda::Stream other;
        write_value(other, stop, number);
        const std::vector<float> got = download(f.device, f.own.size());
        EXPECT_EQ(std::memcmp(got.data(), f.sums.data(), 4 * got.size()), 0);
        EXPECT_NO_THROW(link.require_left(f.own, f.sums));
    }
    EXPECT_GT(download(held, 1)[0], 10'000'000u);
}

TEST_F(GhostLinkTest, AWrongBitIsAnError) {
    const Flat f = flat({100'000}, 0, 8);
    GhostLink link(*stream_, f.gradients, {.rate = 400e9, .host = false});
    link.record(f.sums, pool_);
    link.poison();
    EXPECT_THROW(link.require_left(f.own, f.sums), Error);
    expect_exchange(link, f, 0, 8);
    std::vector<float> other = f.own;
    other[99'999] += 1;  // not in the first rank's share
    EXPECT_THROW(link.require_left(other, f.sums), Error);
}

TEST_F(GhostLinkTest, AnOccupierEndsWithTheStep) {
    Occupier occupier(*stream_, 8);
    for (int i = 0; i < 3; ++i) {
        occupier.begin();
        stream_->synchronize();
        occupier.end();
    }
    stream_->synchronize();
    EXPECT_LT(occupier.held_seconds(), kMostOccupied / 2);
}

TEST_F(GhostLinkTest, MeasuresASmallModel) {
    memory_ = {};
    model::ModelSpec spec = model::trainable_spec(model::random_shape("random:gpt2").first);
    spec.layers = 2;
    const Report report = measure(spec, {.batch = 2,
                                         .seq = 128,
                                         .ranks = 4,
                                         .links = {20e9, 200e9},
                                         .bucket_bytes = std::int64_t{4} << 20,
                                         .occupy = {0, 4},
                                         .steps = 3,
                                         .warmup = 1});
    ASSERT_EQ(report.links.size(), 2u);
    EXPECT_TRUE(report.links[0].host);
    EXPECT_FALSE(report.links[1].host);
    for (const LinkResult& link : report.links) {
        EXPECT_GT(link.times.compute, 0);
        EXPECT_GE(link.times.communication, 0.98 * link.link_seconds);
        EXPECT_GT(link.times.both, 0);
        EXPECT_LE(link.times.hidden(), 1.1);
        EXPECT_LE(link.reached(), 1.02 * link.rate);
    }
    ASSERT_EQ(report.occupied.size(), 2u);
    EXPECT_EQ(report.occupied[0].held_seconds, 0);
    EXPECT_GT(report.occupied[1].held_seconds, 0);
    EXPECT_LT(report.bytes.before_last, report.bytes.all);
    EXPECT_THROW(measure(spec, {.batch = 1, .seq = 128, .links = {1e9}, .occupy = {4096}}), Error);
}

}  // namespace
}  // namespace mr::overlap
