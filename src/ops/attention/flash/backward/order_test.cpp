#include "ops/attention/flash/backward/order.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace mr::cuda::flash {
namespace {

using Kind = ops::AttentionMask::Kind;

const std::vector<ops::AttentionMask> kMasks{
    {Kind::full},
    {Kind::causal},
    {Kind::block_causal, 16},
    {Kind::block_causal, 300},
    {Kind::causal, 1, 37},
    {Kind::causal, 1, 200, 4},
    {Kind::causal, 1, 33, 300},
    {Kind::block_causal, 7, 150, 2},
    {Kind::block_causal, 16, 0, 0, 5},
    {Kind::block_causal, 300, 0, 0, 299},
    {Kind::block_causal, 7, 150, 2, 3},
    {Kind::full, 1, 50, 20},
    {Kind::block_before, 16},
    {Kind::block_before, 300},
};
const std::vector<Sequence> kSequences{{0, 0, 1, 1},     {0, 0, 1, 700},    {0, 0, 700, 1},
                                       {0, 0, 128, 128}, {0, 0, 500, 500},  {0, 0, 300, 900},
                                       {0, 0, 900, 300}, {0, 0, 1000, 257}, {0, 0, 0, 50},
                                       {0, 0, 50, 0},    {0, 0, 1100, 1100}};

// Runs all blocks of a sequence as the device does, at most `slots` at a time and in the order of
// their tickets; every block may take a step when its turn has come. Fails if not all of them end,
// or a tile's turns are not 0, 1, 2, ... With one slot a block that waited for a higher ticket
// would wait forever.
template <int kQ, int kK>
void expect_no_deadlock(const ops::AttentionMask& m, const Sequence& s, int slots) {
    const Mask mask(m);
    const BackwardWalks<kQ, kK> walks(mask, s);
    const BackwardWorkOrder order(1, walks.key_tiles(), 1);
    struct Block {
        int tile, done;
    };
    std::vector<int> turns(static_cast<std::size_t>(walks.query_tiles()), 0);
    std::vector<Block> running;
    unsigned next = 0;
    std::set<int> worked;
    for (bool moved = true; moved;) {
        moved = false;
        while (next < order.blocks() && static_cast<int>(running.size()) < slots) {
            const BackwardWork work = order.at(next++);
            moved = true;
            EXPECT_TRUE(worked.insert(work.key_tile).second);
            running.push_back({work.key_tile, 0});
        }
        for (std::size_t i = 0; i < running.size(); ++i) {
            Block& block = running[i];
            const auto seen = walks.seen_by(block.tile);
            if (block.done == seen.count()) {
                running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
                moved = true;
                break;
            }
            const int tile =
                walks.direction() > 0 ? seen.begin + block.done : seen.end - 1 - block.done;
            int& turn = turns.at(static_cast<std::size_t>(tile));
            if (turn != walks.turn(tile, block.tile)) continue;
            ++turn;
            ++block.done;
            moved = true;
        }
    }
    EXPECT_TRUE(running.empty());
    EXPECT_EQ(worked.size(), static_cast<std::size_t>(walks.key_tiles()));
    // Every tile of queries was added to by all key tiles that see any of it.
    for (int t = 0; t < walks.query_tiles(); ++t) {
        int visits = 0;
        for (int j = 0; j < walks.key_tiles(); ++j) {
            bool sees = false;
            for (int i = t * kQ; i < std::min((t + 1) * kQ, s.queries) && !sees; ++i) {
                for (int key = j * kK; key < std::min((j + 1) * kK, s.keys) && !sees; ++key) {
                    sees = mask.sees(s.position(i), key, s.keys);
                }
            }
            const auto seen = walks.seen_by(j);
            const bool visits_it = t >= seen.begin && t < seen.end;
            EXPECT_TRUE(!sees || visits_it);
            visits += visits_it ? 1 : 0;
        }
        EXPECT_EQ(turns[static_cast<std::size_t>(t)], visits);
        // The last tile to add has the last turn.
        for (int j = 0; j < walks.key_tiles(); ++j) {
            const auto seen = walks.seen_by(j);
            if (t < seen.begin || t >= seen.end) continue;
            EXPECT_EQ(walks.last(t, j), walks.turn(t, j) + 1 == visits) << t << ' ' << j;
        }
    }
}

TEST(FlashBackwardOrder, TurnsComeInOrderAndEveryWaitEnds) {
    for (const ops::AttentionMask& mask : kMasks) {
        for (const Sequence& s : kSequences) {
            for (int slots : {1, 2, 3, 64}) {
                SCOPED_TRACE(::testing::Message()
                             << "kind " << static_cast<int>(mask.kind) << " block " << mask.block
                             << " window " << mask.window << " sinks " << mask.sinks << " queries "
                             << s.queries << " keys " << s.keys << " slots " << slots);
                expect_no_deadlock<64, 128>(mask, s, slots);
                expect_no_deadlock<128, 128>(mask, s, slots);
                if (HasFailure()) return;
            }
        }
    }
}

// Every tile of every pair once, and those of a pair in order.
TEST(FlashBackwardOrder, EveryTileOfEveryPairIsWorkOnce) {
    for (int section : {1, 2, 5, 64}) {
        for (int tiles : {1, 3, 4, 9}) {
            const BackwardWorkOrder order(5, tiles, section);
            std::vector<int> next(5, 0);
            for (unsigned n = 0; n < order.blocks(); ++n) {
                const BackwardWork work = order.at(n);
                ASSERT_EQ(work.key_tile, next.at(static_cast<std::size_t>(work.pair))++);
                ASSERT_EQ(work.end, work.key_tile + 1);
            }
            for (const int count : next) EXPECT_EQ(count, tiles);
        }
    }
}

// With whole pairs a ticket has all tiles of one pair, in order. If every key is seen, so is every
// tile, unless there are no queries: a block never skips one.
TEST(FlashBackwardOrder, WholePairsAreWorkOnce) {
    const BackwardWorkOrder order(5, 9, 2, true);
    ASSERT_EQ(order.blocks(), 5);
    for (unsigned n = 0; n < 5; ++n) {
        const BackwardWork work = order.at(n);
        EXPECT_EQ(work.pair, static_cast<int>(n));
        EXPECT_EQ(work.key_tile, 0);
        EXPECT_EQ(work.end, 9);
    }
    for (const ops::AttentionMask& m : kMasks) {
        if (!Mask(m).every_key_is_seen()) continue;
        for (const Sequence& s : kSequences) {
            const BackwardWalks<128, 128> walks(Mask(m), s);
            for (int j = 0; j < walks.key_tiles(); ++j) {
                EXPECT_EQ(walks.seen_by(j).count() > 0, s.queries > 0) << s.queries << ' ' << j;
            }
        }
    }
}

TEST(FlashBackwardOrder, RowTilesDoNotOverlap) {
    const std::vector<int> lengths{1, 63, 64, 65, 0, 127, 128, 129, 5, 0, 0, 700};
    int first = 0, end = 0;
    for (int s = 0; s < static_cast<int>(lengths.size()); ++s) {
        const int length = lengths[static_cast<std::size_t>(s)];
        EXPECT_GE(first_row_tile(first, s, 64), end);
        end = first_row_tile(first, s, 64) + (length + 63) / 64;
        first += length;
    }
    EXPECT_LE(end, row_tiles(first, static_cast<int>(lengths.size()), 64));
}

}  // namespace
}  // namespace mr::cuda::flash
