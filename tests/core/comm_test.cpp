#include "core/comm/comm.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>

#include "core/comm/launch.h"
#include "core/comm/roll_call.h"
#include "core/error.h"
#include "thread_messages.h"

namespace mr::comm {
namespace {

// Values whose sum depends on the order.
float value(int rank, std::int64_t i) {
    return (rank % 2 ? -1.0f : 1.0f) * static_cast<float>(rank * 7 + 1) /
           static_cast<float>(3 + i % 11) * (rank == 2 ? 1e6f : 1.0f);
}

float tree(const std::vector<float>& v, std::size_t begin, std::size_t end) {
    if (end - begin == 1) return v[begin];
    std::size_t half = 1;
    while (2 * half < end - begin) half *= 2;
    return tree(v, begin, begin + half) + tree(v, begin + half, end);
}

TEST(Shards, AreBlocksAndAllOfThem) {
    for (const std::int64_t count : {0, 1, 63, 64, 65, 1000}) {
        for (const int ranks : {1, 2, 3, 4, 8}) {
            const Shards shards(count, 64, ranks);
            EXPECT_EQ(shards.begin(0), 0);
            EXPECT_EQ(shards.end(ranks - 1), count);
            EXPECT_EQ(shards.count(), count);
            std::int64_t largest = 0;
            for (int r = 0; r < ranks; ++r) {
                EXPECT_LE(shards.begin(r), shards.end(r));
                EXPECT_TRUE(shards.begin(r) % 64 == 0 || shards.begin(r) == count);
                largest = std::max(largest, shards.size(r));
            }
            EXPECT_EQ(shards.largest(), largest);
            EXPECT_LE(largest, (count + 63) / 64 / ranks * 64 + 64);
        }
    }
}

TEST(Comm, SumsAreTheTreeOfTheRanks) {
    for (const int ranks : {1, 2, 3, 4, 5, 8}) {
        for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
            on_ranks(ranks, [&](Comm& comm) {
                std::vector<float> data(static_cast<std::size_t>(count));
                for (std::int64_t i = 0; i < count; ++i) {
                    data[static_cast<std::size_t>(i)] = value(comm.rank(), i);
                }
                comm.all_reduce(data);
                for (std::int64_t i = 0; i < count; ++i) {
                    std::vector<float> parts;
                    for (int r = 0; r < ranks; ++r) parts.push_back(value(r, i));
                    ASSERT_EQ(data[static_cast<std::size_t>(i)], tree(parts, 0, parts.size()))
                        << ranks << " ranks, " << i << " of " << count;
                }
            });
        }
    }
}

TEST(Comm, ReduceScatterGivesEachRankItsShare) {
    constexpr std::int64_t kCount = 1000;
    on_ranks(4, [&](Comm& comm) {
        const Shards shards(kCount, 64, 4);
        std::vector<float> data(kCount);
        for (std::int64_t i = 0; i < kCount; ++i) {
            data[static_cast<std::size_t>(i)] = value(comm.rank(), i);
        }
        comm.reduce_scatter(data, shards);
        for (std::int64_t i = 0; i < kCount; ++i) {
            const bool mine = i >= shards.begin(comm.rank()) && i < shards.end(comm.rank());
            const float sum = (value(0, i) + value(1, i)) + (value(2, i) + value(3, i));
            ASSERT_EQ(data[static_cast<std::size_t>(i)], mine ? sum : value(comm.rank(), i)) << i;
        }
        comm.all_gather(std::span<float>(data), shards);
        for (std::int64_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(data[static_cast<std::size_t>(i)],
                      (value(0, i) + value(1, i)) + (value(2, i) + value(3, i)));
        }
    });
}

TEST(Comm, EveryRankHasWhatOneSent) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
        for (int from = 0; from < ranks; ++from) {
            on_ranks(ranks, [&](Comm& comm) {
                std::vector<int> data(100, comm.rank());
                comm.broadcast(std::as_writable_bytes(std::span(data)), from);
                EXPECT_EQ(data, std::vector<int>(100, from));
                comm.broadcast({}, from);
            });
        }
    }
}

TEST(Comm, MessagesComeInTheirOrder) {
    on_ranks(2, [&](Comm& comm) {
        for (int i = 0; i < 50; ++i) {
            int value = i;
            const auto bytes = std::as_writable_bytes(std::span(&value, 1));
            if (comm.first()) {
                comm.send(1, bytes);
            } else {
                value = -1;
                comm.receive(0, bytes);
                EXPECT_EQ(value, i);
            }
        }
        comm.barrier();
    });
}

TEST(Comm, ABarrierWaitsForAll) {
    std::atomic<int> arrived = 0;
    on_ranks(5, [&](Comm& comm) {
        if (comm.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++arrived;
        comm.barrier();
        EXPECT_EQ(arrived, 5);
    });
}

TEST(Comm, NumbersAreGatheredAndCompared) {
    on_ranks(4, [&](Comm& comm) {
        EXPECT_EQ(comm.gather(comm.rank()), (std::vector<double>{0, 1, 2, 3}));
        EXPECT_EQ(comm.sum(1 + comm.rank()), 10);
        EXPECT_EQ(comm.most(-comm.rank()), 0);
        const std::string same = "the same", other = comm.rank() == 2 ? "not them" : "the same",
                          longer = comm.rank() == 1 ? "another size" : "the same";
        EXPECT_EQ(comm.differing(std::as_bytes(std::span(same))), -1);
        EXPECT_EQ(comm.differing(std::as_bytes(std::span(other))), 2);
        EXPECT_EQ(comm.differing(std::as_bytes(std::span(longer))), 1);
    });
}

// The others name a rank that does not answer.
TEST(Comm, ASilentRankIsNamed) {
    std::vector<std::string> thrown(3);
    std::latch there(3);
    on_ranks(
        3,
        [&](Comm& comm) {
            there.arrive_and_wait();  // a thread that starts late is silent, too
            if (comm.rank() == 1) return;
            try {
                std::vector<float> data(10, 1.0f);
                comm.all_reduce(data);
            } catch (const Error& error) {
                thrown[static_cast<std::size_t>(comm.rank())] = error.what();
                EXPECT_EQ(error.kind(), ErrorKind::device);
            }
        },
        0.5);
    for (const int r : {0, 2}) {
        const std::string& said = thrown[static_cast<std::size_t>(r)];
        EXPECT_NE(said.find("rank 1 has not answered for 0.5 s"), std::string::npos) << said;
        EXPECT_NE(said.find("--comm-timeout"), std::string::npos) << said;
    }
}

// Ranks 1 and 3, 0 and 2, and all of them in turn, while each group belongs to its own thread.
TEST(Comm, GroupsHaveMessagesOfTheirOwn) {
    on_ranks(4, [&](Comm& comm) {
        const std::vector<int> mine = comm.rank() % 2 ? std::vector{3, 1} : std::vector{0, 2};
        const std::unique_ptr<Comm> group = comm.split(mine, 1);
        const std::unique_ptr<Comm> same = comm.split(mine, 2);
        const int me = comm.rank() == mine[0] ? 0 : 1;
        EXPECT_EQ(group->size(), 2);
        EXPECT_EQ(group->rank(), me);
        EXPECT_EQ(group->name_of(1), mine[1]);
        std::thread beside([&] {
            for (int i = 0; i < 50; ++i)
                EXPECT_EQ(same->sum(comm.rank() + i), mine[0] + mine[1] + 2 * i);
        });
        for (int i = 0; i < 50; ++i) {
            EXPECT_EQ(group->gather(comm.rank()),
                      (std::vector<double>{double(mine[0]), double(mine[1])}));
            EXPECT_EQ(comm.sum(comm.rank()), 6);
        }
        beside.join();
        const int alone[] = {comm.rank()};
        EXPECT_TRUE(comm.split(alone, 3)->alone());
        // Some ranks of a group: they keep their global numbers.
        const int turned[] = {1, 0};
        const std::unique_ptr<Comm> again = group->split(turned, 4);
        EXPECT_EQ(again->rank(), 1 - me);
        EXPECT_EQ(again->name_of(0), mine[1]);
        EXPECT_EQ(again->gather(comm.rank())[0], mine[1]);
    });
}

// Errors of a group name a rank by its global number.
TEST(Comm, ASilentRankOfAGroupIsNamed) {
    on_ranks(
        4,
        [&](Comm& comm) {
            const int ends[] = {0, 3};
            if (comm.rank() != 0) return;
            try {
                comm.split(ends, 1)->barrier();
                FAIL() << "nothing was thrown";
            } catch (const LostRank& error) {
                const std::string said = error.what();
                EXPECT_NE(said.find("rank 3 has not answered"), std::string::npos) << said;
            }
        },
        0.1);
}

// A message that comes after its receiver has given up is not written: the memory may have another
// use by then.
TEST(Comm, ALateMessageIsNotWritten) {
    auto messages = thread_messages(2);
    Comm patient(std::move(messages[0]), Comm::Seconds(0.05));
    std::byte in{7};
    EXPECT_THROW(patient.receive(1, {&in, 1}), LostRank);
    const std::byte late{1}, next{2};
    messages[1]->send(0, {&late, 1});
    messages[1]->send(0, {&next, 1});
    std::byte other{};
    patient.receive(1, {&other, 1});
    EXPECT_EQ(in, std::byte{7});
}

// Pending transfers do not keep a rank from other work.
TEST(Comm, TransfersAreLookedAfterNowAndThen) {
    on_ranks(2, [&](Comm& comm) {
        const int other = 1 - comm.rank();
        std::vector<float> out(1000, static_cast<float>(comm.rank())), in(1000);
        Transfers both(comm);
        both.receive(other, std::as_writable_bytes(std::span(in)));
        both.send(other, std::as_bytes(std::span(out)));
        for (int idle = 0; !both.empty();) {
            if (!both.moved()) Transfers::rest(++idle);
        }
        EXPECT_FALSE(both.moved());
        EXPECT_EQ(in, std::vector<float>(1000, static_cast<float>(other)));
    });
}

TEST(Shards, TheFirstAndThoseBehindThemAreTheWhole) {
    const Shards all(1000, 16, 4);
    for (const std::int64_t count : {0, 1, 250, 500, 1000}) {
        const Shards first = all.first(count), behind = all.behind(count);
        EXPECT_EQ(first.count() + behind.count(), all.count());
        for (int r = 0; r < 4; ++r) {
            EXPECT_EQ(first.size(r) + behind.size(r), all.size(r)) << count << ", rank " << r;
        }
    }
}

// Rank 1 waits for rank 2, which is absent; rank 0, which waits for rank 1, learns that.
TEST(RollCall, TheSilentRankIsKnown) {
    auto messages = thread_messages(3);
    const std::vector<int> all{0, 1, 2};
    std::vector<std::unique_ptr<RollCall>> there;
    for (int r = 0; r < 2; ++r) {
        there.push_back(
            std::make_unique<RollCall>(messages[static_cast<std::size_t>(r)]->channel(all, 1),
                                       RollCall::Seconds(1), RollCall::Seconds(0.1)));
    }
    EXPECT_EQ(there[0]->silent(), std::vector<int>{2});
    EXPECT_EQ(there[1]->silent(), std::vector<int>{2});
    there.push_back(std::make_unique<RollCall>(messages[2]->channel(all, 1)));
    EXPECT_EQ(there[0]->silent(), std::vector<int>());
}

// A rank ends only after all others.
TEST(RollCall, EndsWithTheLastRank) {
    on_ranks(4, [](Comm& comm) {
        comm.call_the_roll(5);
        std::this_thread::sleep_for(std::chrono::milliseconds(20 * comm.rank()));
    });
}

// The ranks of a node take its GPUs in turn, or those that the launcher lists.
TEST(Launch, RanksOfANodeTakeItsDevicesInTurn) {
    EXPECT_EQ(device_of_rank(0, nullptr, 4), "0");
    EXPECT_EQ(device_of_rank(5, nullptr, 4), "1");
    EXPECT_EQ(device_of_rank(3, nullptr, 0), "");
    EXPECT_EQ(device_of_rank(1, "6,7", 8), "7");
    EXPECT_EQ(device_of_rank(2, "6,7", 8), "6");
    EXPECT_EQ(device_of_rank(2, "GPU-a1,GPU-b2,,GPU-c3", 8), "GPU-c3");
    EXPECT_EQ(device_of_rank(1, "5", 8), "5");
    EXPECT_EQ(device_of_rank(1, "", 8), "");  // hidden from all
}

TEST(Comm, AloneDoesNothing) {
    Comm comm;
    std::vector<float> data{1, 2, 3};
    comm.barrier();
    comm.all_reduce(data);
    comm.broadcast(std::as_writable_bytes(std::span(data)), 0);
    EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(comm.sum(2.5), 2.5);
    EXPECT_TRUE(comm.alone());
    EXPECT_EQ(comm.sent_bytes(), 0u);
}

}  // namespace
}  // namespace mr::comm
