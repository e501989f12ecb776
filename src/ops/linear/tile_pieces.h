// Distributes the tiles of a product (tiled_half.cu) over the clusters. All constexpr: the kernel
// calls it on the device, tests on the host.
#pragma once

namespace mr::cuda::small {

inline constexpr int kTileParts = 8;  // of the columns: part p has granules p, p + 8, ...
inline constexpr int kQuarters = kTileParts / 2;

// A unit is one tile for each of the cluster's blocks. First all clusters get whole units in turn;
// the last `tail` units are cut into quarters of two parts, and every cluster gets equally many.
struct TileDeal {
    int units, tail;
};
// Cut, a tail takes the time of at most three quarters; whole, of four. It is not cut if that gains
// nothing.
constexpr TileDeal deal_tiles(int units, int clusters) {
    const int left = units % clusters;
    return {units, left * kQuarters <= clusters * (kQuarters - 1) ? left : 0};
}

struct Piece {
    int unit, from, to;  // quarters
};
// The pieces of a cluster in order. Quarters that it hands over come before the first quarter of a
// unit, whose cluster waits for the others: it waits only for later clusters. So all waits end if
// all clusters run at once.
struct PieceWalk {
    int whole, clusters, unit;
    int at, end;  // quarters of the tail
    constexpr PieceWalk(TileDeal deal, int cluster, int of)
        : whole(deal.units - deal.tail),
          clusters(of),
          unit(cluster),
          at(deal.tail * kQuarters * cluster / of),
          end(deal.tail * kQuarters * (cluster + 1) / of) {}
    constexpr bool next(Piece& piece) {
        if (unit < whole) {
            piece = {unit, 0, kQuarters};
            unit += clusters;
            return true;
        }
        if (at >= end) return false;
        const int from = at % kQuarters, room = kQuarters - from, left = end - at;
        const int count = room < left ? room : left;
        piece = {whole + at / kQuarters, from, from + count};
        at += count;
        return true;
    }
};

// The granules of a cluster's pieces in the order in which they are multiplied.
struct GranuleWalk {
    PieceWalk pieces;
    int granules;
    Piece piece{};
    int part = 0, granule = 0;
    bool valid = false;
    constexpr GranuleWalk(const PieceWalk& of, int all) : pieces(of), granules(all) { enter(); }
    constexpr void next() {
        granule += kTileParts;
        if (granule < granules) return;
        granule = ++part;
        if (part == 2 * piece.to || granule >= granules) enter();
    }
    constexpr void enter() {
        valid = false;
        while (!valid && pieces.next(piece)) {
            part = granule = 2 * piece.from;
            valid = granule < granules;
        }
    }
};

}  // namespace mr::cuda::small
