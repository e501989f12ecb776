// The order in which tiles of queries are taken: every tile once, by any block.
#include "ops/attention/flash/forward/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace mr::cuda::flash {
namespace {

ForwardPlan plan_of(int row_tiles, int pairs, int section) {
    ForwardPlan plan;
    plan.row_tiles = row_tiles, plan.pairs = pairs, plan.section = std::min(section, pairs);
    plan.tiles = row_tiles * pairs;
    return plan;
}

TEST(ForwardPlan, HasEveryTileOnce) {
    for (const int row_tiles : {1, 2, 3, 8, 17}) {
        for (const int pairs : {1, 2, 5, 33}) {
            for (const int section : {1, 2, 4, 33}) {
                const ForwardPlan plan = plan_of(row_tiles, pairs, section);
                std::vector<int> taken(static_cast<std::size_t>(plan.tiles), 0);
                for (int t = 0; t < plan.tiles; ++t) {
                    const auto [pair, row] = plan.tile(t);
                    ASSERT_TRUE(row >= 0 && row < row_tiles);
                    ASSERT_TRUE(pair >= 0 && pair < pairs);
                    ++taken[static_cast<std::size_t>(pair * row_tiles + row)];
                }
                EXPECT_EQ(taken, std::vector<int>(taken.size(), 1))
                    << row_tiles << " tiles, " << pairs << " pairs, section " << section;
            }
        }
    }
}

// Blocks act as the kernel's producers: the first tile is the block's number, and for every tile
// taken another one is requested. At any speed all tiles are taken once and the counter is zero
// again. Without a counter every block has its own tiles.
TEST(ForwardPlan, IsTakenOnceByBlocksOfAnySpeed) {
    std::mt19937 random(1);
    for (const int tiles : {1, 2, 7, 132, 133, 500}) {
        for (const int most : {1, 3, 132}) {
            const int blocks = std::min(most, tiles);
            for (const bool counted : {true, false}) {
                unsigned counter = 0;
                std::vector<int> taken(static_cast<std::size_t>(tiles), 0);
                struct Block {
                    int number, tile, round = 1;
                };
                std::vector<Block> busy;
                for (int b = 0; b < blocks; ++b) busy.push_back({b, b});
                while (!busy.empty()) {
                    const std::size_t next = random() % busy.size();
                    Block& block = busy[next];
                    if (block.tile >= tiles) {
                        busy.erase(busy.begin() + static_cast<std::ptrdiff_t>(next));
                        continue;
                    }
                    ++taken[static_cast<std::size_t>(block.tile)];
                    const unsigned ticket = counter;
                    if (counted) counter = counter >= unsigned(tiles) - 1 ? 0 : counter + 1;
                    block.tile = counted ? ForwardPlan::after_ticket(blocks, ticket)
                                         : ForwardPlan::own(block.number, blocks, block.round++);
                }
                EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << tiles << ' ' << blocks;
                EXPECT_EQ(counter, 0u) << tiles << ' ' << blocks;
            }
        }
    }
}

// A sequence has as many tiles as it needs; they end with its last query and leave none out.
TEST(ForwardPlan, TilesEndWithTheLastQuery) {
    const ForwardPlan plan = plan_of(6, 1, 1);
    for (const int queries : {1, 63, 64, 191, 192, 193, 1000, 1024, 1152}) {
        const int tiles = (queries + 191) / 192;
        for (int row = 0; row < tiles; ++row) {
            EXPECT_EQ(plan.first_row(row, queries, 192), queries - (tiles - row) * 192);
        }
        EXPECT_LE(plan.first_row(0, queries, 192), 0);
        EXPECT_GT(plan.first_row(0, queries, 192), -192);
        for (int row = tiles; row < 8; ++row) {
            EXPECT_GE(plan.first_row(row, queries, 192), queries);
        }
    }
    EXPECT_GE(plan.first_row(0, 0, 192), 0);
}

// Long tiles first: the last ones are short, so that no block works alone at the end.
TEST(ForwardPlan, ASectionEndsWithTheFirstQueries) {
    const ForwardPlan plan = plan_of(16, 4, 2);
    for (int t = 0; t < plan.tiles; ++t) {
        EXPECT_EQ(plan.tile(t).row, 15 - t % 32 / 2);
        EXPECT_EQ(plan.tile(t).pair, t / 32 * 2 + t % 2);
    }
}

TEST(ForwardPlan, SectionsAreWhatFitsIntoL2OrKeepsBlocksBusy) {
    Problem p;
    p.sequences = 2, p.heads = 8, p.group = 2, p.head_dim = 128;
    p.max_queries = 1000, p.max_keys = 4096, p.scale = 1;
    p.mask.kind = Mask::Kind::causal;
    const ForwardPlan plan = plan_forward(p, 128, 4, 24u << 20, nullptr);
    EXPECT_EQ(plan.row_tiles, 8);
    EXPECT_EQ(plan.pairs, 16);
    EXPECT_EQ(plan.tiles, 128);
    EXPECT_EQ(plan.counter, -1);
    EXPECT_EQ(plan.section, 8);  // 8 MiB, of 1 MiB each
    EXPECT_EQ(plan_forward(p, 128, 4, 1, nullptr).section, 1);
    EXPECT_EQ(plan_forward(p, 128, 24, 1, nullptr).section, 6);  // 16 in three sections
    EXPECT_EQ(plan_forward(p, 128, 1, 1, nullptr).section, 1);
    EXPECT_EQ(plan_forward(p, 128, 4, std::size_t{1} << 40, nullptr).section, 16);
    // All tiles are equally long: smaller sections, for any number of blocks.
    p.mask.kind = Mask::Kind::full;
    EXPECT_EQ(plan_forward(p, 128, 132, 24u << 20, nullptr).section, 4);
    EXPECT_EQ(plan_forward(p, 128, 132, 48u << 20, nullptr).section, 8);
    EXPECT_EQ(plan_forward(p, 128, 132, 1, nullptr).section, 4);
    EXPECT_EQ(plan_forward(p, 128, 132, std::size_t{1} << 40, nullptr).section, 16);
    // Lengths that the host does not know, or unequal ones.
    const std::int32_t lengths[3] = {};
    p.cu_q = lengths;
    EXPECT_EQ(plan_forward(p, 128, 132, 24u << 20, nullptr).section, 16);
    p.cu_q = nullptr, p.mask.window = 100;
    EXPECT_EQ(plan_forward(p, 128, 132, 24u << 20, nullptr).section, 16);
}

// Calls f(mask, keys, first, last) for tiles of 128 queries that begin at `first_row`: positions
// first to last of sequences of many lengths.
template <typename FirstRow, typename F>
void for_tiles_of_queries(FirstRow&& first_row, F&& f) {
    constexpr int kRows = 128;
    using Kind = ops::AttentionMask::Kind;
    for (const ops::AttentionMask& words :
         {ops::AttentionMask{Kind::full}, ops::AttentionMask{Kind::causal},
          ops::AttentionMask{Kind::block_causal, 16}, ops::AttentionMask{Kind::causal, 1, 1},
          ops::AttentionMask{Kind::causal, 1, 5}, ops::AttentionMask{Kind::causal, 1, 37},
          ops::AttentionMask{Kind::causal, 1, 5, 4}, ops::AttentionMask{Kind::full, 1, 5, 40},
          ops::AttentionMask{Kind::block_causal, 7, 90, 67}}) {
        const Mask mask(words);
        for (const int keys : {1, 31, 33, 64, 129, 180, 300, 700, 1000}) {
            for (const int queries : {1, 2, 65, 129, 200, 300}) {
                if (queries > keys) continue;
                const Sequence s{0, 0, queries, keys};
                for (int row = 0; row < (queries + kRows - 1) / kRows; ++row) {
                    const int row0 = first_row(row, queries);
                    f(mask, keys, s.position(std::max(row0, 0)),
                      s.position(std::min(row0 + kRows, queries) - 1));
                    if (::testing::Test::HasFatalFailure()) {
                        FAIL() << queries << " over " << keys << ", window " << mask.window
                               << ", sinks " << mask.sinks;
                    }
                }
            }
        }
    }
}

// Whether a query at one of these positions sees one of `count` keys.
bool any_sees(const Mask& mask, int keys, int first, int last, int key, int count) {
    for (int p = first; p <= last; ++p) {
        for (int j = key; j < std::min(key + count, keys); ++j) {
            if (mask.sees(p, j, keys)) return true;
        }
    }
    return false;
}

// The producer of the forward over pages copies, of every tile of keys
// that a tile of queries visits, the pages of which one of its queries
// sees a key, and no others. Keys past the sequence's end lie only where
// the consumers write zeros: up to the end of the first tile visited.
TEST(ForwardPages, AreThoseWithAVisibleKey) {
    constexpr int kKeys = 128, kPage = PagedKeys::kPage;
    for_tiles_of_queries(
        [](int row, int queries) { return ForwardPlan::first_row(row, queries, 128); },
        [](const Mask& mask, int keys, int first, int last) {
            const KeyTiles<kKeys> tiles(mask, first, last, keys);
            const int hi = mask.hi(last, keys), lo = std::min(mask.lo(first), hi);
            for (int i = 0; i < tiles.count() * (kKeys / kPage); ++i) {
                const int tile = i / (kKeys / kPage);
                const int key = tiles.at(tile) + i % (kKeys / kPage) * kPage;
                const bool seen = any_sees(mask, keys, first, last, key, kPage);
                const int at = PagedKeys::or_seen(mask, key, lo, hi);
                ASSERT_TRUE((at == key) == seen && at >= 0 && at < hi)
                    << "key " << key << ", at " << at;
                ASSERT_TRUE(!seen || key + kPage <= keys || tile == 0);
            }
        });
}

// The forward without TMA copies a part of every tile: the visible keys, nothing of pages without
// one, and nothing past the sequence's end.
TEST(ForwardPages, PartsHoldTheVisibleKeys) {
    constexpr int kKeys = 64, kPage = PagedKeys::kPage;
    for_tiles_of_queries([](int row, int) { return 128 * row; },
                         [](const Mask& mask, int keys, int first, int last) {
                             const KeyTiles<kKeys> tiles(mask, first, last, keys);
                             const int hi = mask.hi(last, keys), lo = std::min(mask.lo(first), hi);
                             for (int i = 0; i < tiles.count(); ++i) {
                                 const int n = tiles.at(i);
                                 const auto part = PagedKeys::part<kKeys>(mask, n, lo, hi);
                                 for (int key = n; key < n + kKeys; ++key) {
                                     const bool copied = part.holds(static_cast<unsigned>(key - n));
                                     if (any_sees(mask, keys, first, last, key, 1)) {
                                         ASSERT_TRUE(copied) << "key " << key;
                                     }
                                     if (copied) {
                                         ASSERT_LT(key, keys);
                                         const int page = key / kPage * kPage;
                                         ASSERT_EQ(PagedKeys::or_seen(mask, page, lo, hi), page)
                                             << "key " << key;
                                     }
                                 }
                             }
                         });
}

}  // namespace
}  // namespace mr::cuda::flash
