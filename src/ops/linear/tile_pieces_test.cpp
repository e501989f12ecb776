#include "ops/linear/tile_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mr::cuda::small {
namespace {

std::vector<Piece> pieces_of(TileDeal deal, int cluster, int clusters) {
    PieceWalk walk(deal, cluster, clusters);
    std::vector<Piece> out;
    for (Piece piece{}; walk.next(piece);) out.push_back(piece);
    return out;
}

TEST(TilePieces, EveryQuarterIsDealtOnceAndEvenly) {
    for (const int clusters : {1, 2, 3, 30, 57, 66}) {
        for (int units = 1; units <= 5 * clusters + 2; ++units) {
            SCOPED_TRACE(std::to_string(units) + " units, clusters " + std::to_string(clusters));
            const TileDeal deal = deal_tiles(units, clusters);
            std::map<std::pair<int, int>, int> owner;  // by (unit, quarter)
            int least = 1 << 30, most = 0;
            for (int c = 0; c < clusters; ++c) {
                int quarters = 0;
                for (const Piece& piece : pieces_of(deal, c, clusters)) {
                    ASSERT_LT(piece.from, piece.to);
                    for (int q = piece.from; q < piece.to; ++q, ++quarters) {
                        ASSERT_TRUE(owner.emplace(std::pair{piece.unit, q}, c).second);
                    }
                }
                least = std::min(least, quarters);
                most = std::max(most, quarters);
            }
            ASSERT_EQ(owner.size(), static_cast<std::size_t>(units) * kQuarters);
            // If the tail is cut, clusters' numbers of quarters differ by at most one.
            if (deal.tail > 0) {
                EXPECT_LE(most - least, 1);
            } else {
                EXPECT_LE(most - least, kQuarters);
            }
            EXPECT_LE(most, (units + clusters - 1) / clusters * kQuarters);
        }
    }
}

// Quarters that are handed over have room, and waits end: a cluster hands over its quarters before
// it waits, and waits only for later clusters.
TEST(TilePieces, ClustersWaitForLaterOnesAlone) {
    for (const int clusters : {1, 2, 3, 30, 57, 66}) {
        for (int units = 1; units <= 3 * clusters; ++units) {
            SCOPED_TRACE(std::to_string(units) + " units, clusters " + std::to_string(clusters));
            const TileDeal deal = deal_tiles(units, clusters);
            ASSERT_LE(deal.tail * kQuarters, clusters * (kQuarters - 1));
            std::map<int, int> finisher;
            for (int c = 0; c < clusters; ++c) {
                for (const Piece& piece : pieces_of(deal, c, clusters)) {
                    if (piece.from == 0) finisher[piece.unit] = c;
                }
            }
            ASSERT_EQ(finisher.size(), static_cast<std::size_t>(units));
            for (int c = 0; c < clusters; ++c) {
                bool waited = false;
                for (const Piece& piece : pieces_of(deal, c, clusters)) {
                    if (piece.from > 0) {
                        EXPECT_GE(piece.unit, units - deal.tail);
                        EXPECT_LT(finisher[piece.unit], c);
                        EXPECT_FALSE(waited);
                    } else {
                        waited = waited || piece.to < kQuarters;
                    }
                }
            }
        }
    }
}

// Part after part, and within a part every eighth granule.
TEST(TilePieces, GranulesComeInTheOrderOfTheParts) {
    const int clusters = 5;
    for (const int units : {1, 3, 7, 12}) {
        for (const int granules : {1, 2, 5, 7, 8, 9, 40, 43}) {
            SCOPED_TRACE(std::to_string(units) + " units, granules " + std::to_string(granules));
            const TileDeal deal = deal_tiles(units, clusters);
            for (int c = 0; c < clusters; ++c) {
                GranuleWalk walk(PieceWalk(deal, c, clusters), granules);
                for (const Piece& piece : pieces_of(deal, c, clusters)) {
                    for (int part = 2 * piece.from; part < 2 * piece.to; ++part) {
                        for (int g = part; g < granules; g += kTileParts) {
                            ASSERT_TRUE(walk.valid);
                            ASSERT_EQ(walk.piece.unit, piece.unit);
                            ASSERT_EQ(walk.granule, g);
                            walk.next();
                        }
                    }
                }
                ASSERT_FALSE(walk.valid);
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda::small
