// Gradients of ranks that share a GPU: ranks are threads here, each with its own stream.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/comm/device_link.h"
#include "core/cuda/testing.h"
#include "core/error.h"
#include "thread_messages.h"
#include "train/parallel/device_exchange.h"

namespace mr::train {
namespace {

using comm::on_ranks;

class DeviceExchangeTest : public cuda::GpuTest {};

float value(int rank, std::int64_t i) {
    return static_cast<float>(static_cast<double>(i % 1009 + 1) / (3.0 + rank));
}
float tree(int ranks, int first, int step, std::int64_t i) {
    if (ranks == 1) return value(first + step, i);
    return tree(ranks / 2, first, step, i) + tree(ranks / 2, first + ranks / 2, step, i);
}
comm::Shards cut(std::int64_t count, int ranks) { return {count, 16, ranks}; }

// Pieces in device memory.
class Pieces {
  public:
    Pieces(const std::vector<std::int64_t>& sizes, int rank, int step)
        : memory_("pieces", std::size_t{64} << 20) {
        for (const std::int64_t size : sizes) {
            std::vector<float> host(static_cast<std::size_t>(size));
            for (std::int64_t i = 0; i < size; ++i) {
                host[static_cast<std::size_t>(i)] = value(rank + step, i);
            }
            at_.push_back(memory_.array<float>(host.size()));
            stream.to_device(at_.back(), host.data(), host.size() * sizeof(float), nullptr);
            stream.synchronize();
        }
    }
    float* operator[](std::size_t i) const { return at_[i]; }
    std::vector<float> read(std::size_t i, std::int64_t size) const {
        std::vector<float> out(static_cast<std::size_t>(size));
        stream.to_host(out.data(), at_[i], out.size() * sizeof(float), nullptr);
        stream.synchronize();
        return out;
    }
    cuda::Stream stream;

  private:
    cuda::DeviceArena memory_;
    std::vector<float*> at_;
};

// Pieces shorter and longer than a bucket, whole sums, only shares, and gathered pieces.
TEST_F(DeviceExchangeTest, SumsAreATreeOverRanks) {
    const std::vector<std::int64_t> sizes{1, 0, 7, 100003, 1024, 300000, 3};
    for (const int ranks : {2, 4}) {
        for (const std::int64_t bucket : {1, 300000, 1 << 24}) {
            on_ranks(ranks, [&](comm::Comm& comm) {
                const auto exchange = make_device_exchange(comm, {.bucket = bucket});
                EXPECT_NE(exchange->about().find("host memory"), std::string::npos);
                for (int step = 0; step < 2; ++step) {  // it can be reused
                    const bool whole = step == 0;
                    const Pieces pieces(sizes, comm.rank(), step);
                    exchange->attach(&pieces.stream);
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                        exchange->add_up(pieces[i], cut(sizes[i], ranks), whole);
                    }
                    exchange->finish();
                    for (std::size_t p = 0; p < sizes.size(); ++p) {
                        const comm::Shards shards = cut(sizes[p], ranks);
                        const std::int64_t begin = whole ? 0 : shards.begin(comm.rank());
                        const std::int64_t end = whole ? sizes[p] : shards.end(comm.rank());
                        const std::vector<float> got = pieces.read(p, sizes[p]);
                        for (std::int64_t i = begin; i < end; ++i) {
                            ASSERT_EQ(got[static_cast<std::size_t>(i)], tree(ranks, 0, step, i))
                                << p << ", " << i;
                        }
                        if (whole) continue;
                        exchange->wait(exchange->collect(pieces[p], shards, sizeof(float)));
                        const std::vector<float> all = pieces.read(p, sizes[p]);
                        for (std::int64_t i = 0; i < sizes[p]; ++i) {
                            ASSERT_EQ(all[static_cast<std::size_t>(i)], tree(ranks, 0, step, i))
                                << p << ", " << i;
                        }
                    }
                    const double mine[] = {comm.rank() + 0.5, -1.0};
                    EXPECT_EQ(exchange->gather(mine)[2], 1.5);
                }
                EXPECT_GT(exchange->busy_seconds(), 0);
            });
        }
    }
}

// Waits for gradients that are written after much other work.
TEST_F(DeviceExchangeTest, WaitsForTheStreamThatMakesThem) {
    constexpr std::int64_t kCount = 1 << 20;
    on_ranks(2, [&](comm::Comm& comm) {
        const auto exchange = make_device_exchange(comm, {.bucket = 1 << 20});
        const Pieces pieces({kCount, kCount}, comm.rank(), 0);
        exchange->attach(&pieces.stream);
        const std::size_t bytes = kCount * sizeof(float);
        cuda::DeviceArena room("room", 2 * bytes);
        auto* const late = room.array<float>(kCount);
        pieces.stream.fill(pieces[1], 0xff, bytes);
        for (int i = 0; i < 2000; ++i) pieces.stream.on_device(late, pieces[0], bytes);
        pieces.stream.on_device(pieces[1], late, bytes);
        exchange->add_up(pieces[1], cut(kCount, 2), true);
        exchange->finish();
        const std::vector<float> got = pieces.read(1, kCount);
        for (std::int64_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(got[static_cast<std::size_t>(i)], tree(2, 0, 0, i)) << i;
        }
    });
}

TEST_F(DeviceExchangeTest, ASilentRankIsNamed) {
    on_ranks(
        2,
        [&](comm::Comm& comm) {
            const auto exchange = make_device_exchange(comm, {.bucket = 1});
            if (comm.rank() == 1) return;
            const Pieces pieces({1000}, 0, 0);
            exchange->attach(&pieces.stream);
            exchange->add_up(pieces[0], cut(1000, 2), true);
            try {
                exchange->finish();
                ADD_FAILURE() << "rank 1 has sent nothing";
            } catch (const comm::LostRank& error) {
                EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos)
                    << error.what();
            }
        },
        0.5);
}

// Without NCCL its sum is not available.
TEST_F(DeviceExchangeTest, FastSumsNeedNccl) {
    on_ranks(2, [&](comm::Comm& comm) {
        EXPECT_THROW(make_device_exchange(comm, {.fast = true}), Error);
    });
}

// A single rank is its own neighbour.
TEST_F(DeviceExchangeTest, NcclBringsPiecesAndAddsUp) {
    if (const std::string why = comm::why_no_nccl(); !why.empty()) GTEST_SKIP() << why;
    comm::Comm comm;
    const std::unique_ptr<comm::DeviceLink> link = comm::nccl_link(comm);
    EXPECT_EQ(link->name().rfind("NCCL ", 0), 0u) << link->name();
    const std::int64_t count = 100003;
    const std::vector<float> values = normal(static_cast<std::size_t>(count));
    auto* const from = upload<float>(std::span<const float>(values));
    auto* const to = memory_.array<float>(values.size());
    stream_->fill(to, 0xff, values.size() * sizeof(float));
    const std::size_t bytes = values.size() * sizeof(float);
    for (const std::size_t first : {std::size_t{4}, bytes / 8 * 4}) {
        const comm::DevicePiece out[] = {
            {0, from, first}, {0, from + first / 4, bytes - first}, {0, from, 0}};
        const comm::DevicePiece in[] = {
            {0, to, first}, {0, to + first / 4, bytes - first}, {0, to, 0}};
        link->exchange(*stream_, out, in);
        EXPECT_EQ(download(to, values.size()), values);
    }
    ASSERT_TRUE(link->adds_up());
    comm::to_bf16(*stream_, to, from, count);
    link->add_up(*stream_, to, count);
    auto* const back = memory_.array<float>(values.size());
    comm::to_f32(*stream_, back, to, count);
    const cuda::Event done;
    stream_->record(done);
    link->wait(done);
    const std::vector<float> got = download(back, values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], values[i], std::abs(values[i]) / 256) << i;
    }
}

// Compares with the tree on the host.
TEST_F(DeviceExchangeTest, KernelsAddUpAsTheHostDoes) {
    for (const int ranks : {2, 8, 64, 128, 512}) {
        for (const std::int64_t count : {1, 1024, 100003}) {
            std::vector<std::vector<float>> parts;
            for (int r = 0; r < ranks; ++r) {
                parts.push_back(normal(static_cast<std::size_t>(count)));
            }
            const int rank = ranks / 2;
            std::vector<float> others;
            for (int r = 0; r < ranks; ++r) {
                const auto& part = parts[static_cast<std::size_t>(r)];
                if (r != rank) others.insert(others.end(), part.begin(), part.end());
            }
            const auto& mine = parts[static_cast<std::size_t>(rank)];
            float* const own = upload<float>(std::span<const float>(mine));
            float* const packed = memory_.array<float>(mine.size());
            const comm::SumPiece piece{own, upload<float>(std::span<const float>(others)), packed,
                                       count};
            comm::tree_sum(*stream_, std::span(&piece, 1), rank, ranks);
            const std::vector<float> got = download(own, mine.size());
            EXPECT_EQ(download(packed, mine.size()), got);
            std::vector<float*> at;
            for (auto& part : parts) at.push_back(part.data());
            comm::tree_sum(at, count);
            EXPECT_EQ(got, parts[0]) << ranks << " ranks, " << count;
            memory_.reset();
        }
    }
}

}  // namespace
}  // namespace mr::train
