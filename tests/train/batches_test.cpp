// Batches as a pure function of the step, and the thread that reads them ahead.
#include "train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "shard_files.h"

namespace mr::train {
namespace {

std::vector<std::int32_t> counting(std::int32_t n) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
}

TEST(IndexPermutation, EverySmallSizeIsAPermutation) {
    for (std::uint64_t size = 1; size <= 300; ++size) {
        const IndexPermutation order(size, size * 77);
        std::vector<int> seen(size);
        for (std::uint64_t i = 0; i < size; ++i) {
            ASSERT_LT(order(i), size);
            ++seen[order(i)];
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(size));
    }
}

TEST(IndexPermutation, LargeSizesAndOtherKeys) {
    const std::uint64_t huge = (std::uint64_t{1} << 62) + 12345;
    const IndexPermutation order(huge, 5), other(huge, 6);
    std::set<std::uint64_t> seen;
    int same = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        ASSERT_LT(order(i), huge);
        seen.insert(order(i));
        same += order(i) == other(i);
    }
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_LT(same, 3);
    EXPECT_THROW((void)order(huge), ContractError);
}

// Neighbours are separated, and windows keep their place no more often than by chance.
TEST(IndexPermutation, IsMixed) {
    const std::uint64_t size = 1000;
    double fixed = 0, adjacent = 0;
    const int keys = 200;
    for (std::uint64_t key = 0; key < keys; ++key) {
        const IndexPermutation order(size, key);
        for (std::uint64_t i = 0; i < size; ++i) {
            fixed += order(i) == i;
            if (i > 0) adjacent += order(i) == order(i - 1) + 1;
        }
    }
    // Each count is Poisson with mean 1 per key; for 200 keys: 200 +- 5 sqrt(200).
    EXPECT_NEAR(fixed, keys, 5 * 14.2);
    EXPECT_NEAR(adjacent, keys, 5 * 14.2);
}

TEST(Batches, RowsAreWindowsWithTheTokenAfter) {
    const ShardBytes a(counting(70)), b(counting(0)), c(counting(61));
    const Shards shards = shards_of({&a, &b, &c});
    const Batches batches(shards, {.batch = 4, .seq = 8, .seed = 3});
    ASSERT_EQ(batches.windows(), (131u - 1) / 8);
    std::vector<std::int32_t> all(131);
    shards.read(0, all);
    EXPECT_EQ(all[69], 69);
    EXPECT_EQ(all[70], 0);
    std::vector<std::int32_t> ids(batches.batch_ids());
    for (std::uint64_t step = 0; step < 10; ++step) {
        ASSERT_EQ(batches.read(step, ids), 4);
        for (std::int64_t row = 0; row < 4; ++row) {
            const std::uint64_t at = batches.window(step, row) * 8;
            for (std::size_t i = 0; i < 9; ++i) {
                EXPECT_EQ(ids[static_cast<std::size_t>(row) * 9 + i], all[at + i]);
            }
        }
    }
}

TEST(Batches, AnEpochHasEveryWindowOnceAndTheNextAnotherOrder) {
    const ShardBytes a(counting(8 * 21 + 1));
    const Shards shards = shards_of({&a});
    const Batches batches(shards, {.batch = 4, .seq = 8, .seed = 9});
    ASSERT_EQ(batches.windows(), 21u);
    EXPECT_EQ(batches.steps_per_epoch(), 6u);
    std::vector<std::uint64_t> order;
    for (std::uint64_t n = 0; n < 63; ++n) {  // epochs do not end with a step
        order.push_back(batches.window(n / 4, static_cast<std::int64_t>(n % 4)));
    }
    for (int epoch = 0; epoch < 3; ++epoch) {
        const auto begin = order.begin() + 21 * epoch;
        EXPECT_EQ(std::set<std::uint64_t>(begin, begin + 21).size(), 21u);
    }
    EXPECT_FALSE(std::equal(order.begin(), order.begin() + 21, order.begin() + 21));
    const Batches same(shards, {.batch = 4, .seq = 8, .seed = 9});
    const Batches other(shards, {.batch = 4, .seq = 8, .seed = 10});
    int differ = 0;
    for (std::uint64_t n = 0; n < 21; ++n) {
        const auto row = static_cast<std::int64_t>(n % 4);
        EXPECT_EQ(same.window(n / 4, row), order[n]);
        differ += other.window(n / 4, row) != order[n];
    }
    EXPECT_GT(differ, 10);
}

TEST(Batches, ValidationTakesAllWindowsInOrderOnce) {
    const ShardBytes a(counting(50));
    const Shards shards = shards_of({&a});
    const Batches batches(shards, {.batch = 3, .seq = 6, .shuffle = false});
    ASSERT_EQ(batches.windows(), 8u);
    EXPECT_EQ(batches.steps_per_epoch(), 3u);
    std::vector<std::int32_t> ids(batches.batch_ids(), -7);
    EXPECT_EQ(batches.read(0, ids), 3);
    EXPECT_EQ(ids[0], 0);
    EXPECT_EQ(ids[20], 18);
    EXPECT_EQ(batches.read(2, ids), 2);
    EXPECT_EQ(ids[0], 36);
    EXPECT_EQ(ids[13], 48);
    for (std::size_t i = 14; i < 21; ++i) EXPECT_EQ(ids[i], 0);
    EXPECT_EQ(batches.read(3, ids), 0);
}

// Ids 0 to 130 and a first id outside them: the rest of a window, targets included, is
// unchanged.
TEST(Batches, EveryWindowMayBeginWithOneToken) {
    constexpr std::int32_t kFirst = 777;
    const ShardBytes a(counting(70)), b(counting(61));
    const Shards shards = shards_of({&a, &b});
    for (const bool shuffle : {true, false}) {
        BatchOptions options{.batch = 3, .seq = 8, .seed = 3, .shuffle = shuffle};
        const Batches plain(shards, options);
        options.first = kFirst;
        const Batches begun(shards, options);
        EXPECT_EQ(begun.windows(), plain.windows());
        std::vector<std::int32_t> expected(plain.batch_ids()), ids(begun.batch_ids(), -7);
        std::set<std::int64_t> rows_seen;
        for (std::uint64_t step = 0; step <= begun.steps_per_epoch(); ++step) {
            const std::int64_t rows = plain.read(step, expected);
            rows_seen.insert(rows);
            for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
                EXPECT_NE(expected[row * 9], kFirst);
                expected[row * 9] = kFirst;
            }
            EXPECT_EQ(begun.read(step, ids), rows);
            EXPECT_EQ(ids, expected) << step;  // rows past the last window stay zeros
        }
        // 16 windows: in order the last batch has one, and then there are none.
        EXPECT_EQ(rows_seen,
                  shuffle ? std::set<std::int64_t>({3}) : std::set<std::int64_t>({0, 1, 3}));
    }
}

TEST(Batches, TooFewTokensSaySo) {
    const ShardBytes a(counting(8));
    const Shards shards = shards_of({&a});
    EXPECT_EQ(Batches(shards, {.batch = 1, .seq = 7}).windows(), 1u);
    try {
        (void)Batches(shards, {.batch = 1, .seq = 8});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find("8"), std::string::npos);
    }
    EXPECT_THROW((void)Batches(Shards(), {.batch = 1, .seq = 8}), Error);
}

// Steps of 8 passes on 4 ranks: adjacent, or in turn.
TEST(Batches, RanksHaveThePassesOfAStepOnce) {
    const auto numbers = [](std::uint64_t rank, bool in_turn) {
        const BatchOrder order{
            .here = 2, .all = 8, .first = in_turn ? rank : 2 * rank, .apart = in_turn ? 4u : 1u};
        return std::vector<std::uint64_t>{order.number(0), order.number(1), order.number(2)};
    };
    EXPECT_EQ(numbers(0, false), (std::vector<std::uint64_t>{0, 1, 8}));
    EXPECT_EQ(numbers(3, false), (std::vector<std::uint64_t>{6, 7, 14}));
    EXPECT_EQ(numbers(0, true), (std::vector<std::uint64_t>{0, 4, 8}));
    EXPECT_EQ(numbers(3, true), (std::vector<std::uint64_t>{3, 7, 11}));
}

class PrefetchDepth : public testing::TestWithParam<std::size_t> {};

TEST_P(PrefetchDepth, GivesTheSameBatchesFromAnyStep) {
    const ShardBytes a(counting(1000));
    const Shards shards = shards_of({&a});
    const Batches batches(shards, {.batch = 4, .seq = 16, .seed = 1});
    const Batches begun(shards, {.batch = 4, .seq = 16, .seed = 1, .first = 2000});
    std::vector<std::vector<std::int32_t>> memory(GetParam() + 1,
                                                  std::vector<std::int32_t>(batches.batch_ids()));
    std::vector<std::int32_t> expected(batches.batch_ids());
    {
        Prefetcher prefetcher(begun, 5, {memory.begin(), memory.end()});
        for (std::uint64_t step = 5; step < 25; ++step) {
            const Prefetcher::Batch batch = prefetcher.next();
            (void)batches.read(step, expected);
            for (std::size_t row = 0; row < 4; ++row) expected[row * 17] = 2000;
            EXPECT_TRUE(std::equal(expected.begin(), expected.end(), batch.ids.begin()));
            prefetcher.release();
        }
    }
    for (const std::uint64_t first : {0, 37}) {
        Prefetcher prefetcher(batches, first, {memory.begin(), memory.end()});
        for (std::uint64_t step = first; step < first + 50; ++step) {
            const Prefetcher::Batch batch = prefetcher.next();
            EXPECT_EQ(batch.step, step);
            EXPECT_EQ(batch.rows, 4);
            EXPECT_EQ(batch.ids.data(), memory[batch.buffer].data());
            (void)batches.read(step, expected);
            EXPECT_TRUE(std::equal(expected.begin(), expected.end(), batch.ids.begin()));
            prefetcher.release();
        }
        EXPECT_GE(prefetcher.wait_seconds(), 0);
    }
}

TEST(Batches, AWindowIsInputsAndTheTokensAfterThem) {
    const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    std::vector<std::int32_t> slot(2 * 3 * 3, -7);
    split_windows(ids, 3, 2, slot);
    EXPECT_EQ(slot, (std::vector<std::int32_t>{1, 2, 3, 5, 6, 7, 9, 10, 11,  //
                                               2, 3, 4, 6, 7, 8, -1, -1, -1}));
    EXPECT_THROW(split_windows(std::span(ids).first(11), 3, 2, slot), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Depths, PrefetchDepth, testing::Values(0, 1, 2, 5),
                         testing::PrintToStringParamName());

// Several batches in use at once, as when copies to a GPU are still in flight.
TEST(Prefetcher, ABatchStaysUntilItIsReleased) {
    const ShardBytes a(counting(1000));
    const Shards shards = shards_of({&a});
    const Batches batches(shards, {.batch = 2, .seq = 10, .seed = 1});
    std::vector<std::vector<std::int32_t>> memory(3,
                                                  std::vector<std::int32_t>(batches.batch_ids()));
    Prefetcher prefetcher(batches, 0, {memory.begin(), memory.end()});
    const auto first = prefetcher.next(), second = prefetcher.next(), third = prefetcher.next();
    EXPECT_THROW((void)prefetcher.next(), ContractError);
    std::vector<std::int32_t> expected(batches.batch_ids());
    for (const auto& batch : {first, second, third}) {
        (void)batches.read(batch.step, expected);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), batch.ids.begin()));
    }
    prefetcher.release();
    EXPECT_EQ(prefetcher.next().buffer, first.buffer);
    for (int i = 0; i < 3; ++i) prefetcher.release();
    EXPECT_THROW(prefetcher.release(), ContractError);
}

TEST(Prefetcher, WhatReadingThrewComesOutInItsTurn) {
    std::vector<std::int32_t> ids = counting(100);
    ids[55] = 999;
    const ShardBytes a(ids, 200);
    const Shards shards = shards_of({&a});
    const Batches batches(shards, {.batch = 1, .seq = 10, .shuffle = false});
    std::vector<std::vector<std::int32_t>> memory(4,
                                                  std::vector<std::int32_t>(batches.batch_ids()));
    Prefetcher prefetcher(batches, 0, {memory.begin(), memory.end()});
    for (int step = 0; step < 5; ++step) {
        EXPECT_EQ(prefetcher.next().step, static_cast<std::uint64_t>(step));
        prefetcher.release();
    }
    for (int again = 0; again < 2; ++again) {
        try {
            (void)prefetcher.next();
            FAIL();
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("token 55 = 999"), std::string::npos)
                << error.what();
        }
    }
}

}  // namespace
}  // namespace mr::train
