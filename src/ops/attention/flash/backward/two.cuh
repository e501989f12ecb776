// Shared by the two-pass backwards (plain and mma.sync). Blocks share no sums: in one pass a block
// has a tile of keys and walks along the queries that see it, for dk and dv; in the other it has a
// tile of queries and walks along the keys, for dq. Both recompute the scores, so a tile costs
// seven products instead of five.
//
// The passes are one piece of code. "Own" rows are those whose gradients a block computes, "other"
// rows those it walks along; with own keys a row's pair is (k, v) and another's (q, dout), with own
// queries the other way round. Then in both, for own row x and other row y,
//   s = a1[x] . b1[y]     P = exp2(s * scale * log2(e) - lse2)
//   dp = a2[x] . b2[y]    dS = P * (dp - delta)
//   sum1[x] += dS b1[y]   (dk or dq)        sum2[x] += P b2[y]   (dv)
// where lse2 and delta are those of the query among the two.
#pragma once

#include "ops/attention/flash/backward/backward.cuh"

namespace mr::cuda::flash {

struct TwoPassArgs {
    Problem p;
    BackwardViews views;
    float* delta = nullptr;  // [heads, tokens_q] dout . out
    int tiles = 0;           // of own rows, of the longest sequence
    Stamp* stamp = nullptr;
};

// One block's own tile and walk. kOwn own rows and kOther other rows per tile.
template <bool kKeys, int kOwn, int kOther>
struct TwoPassWalk {
    Sequence s;
    int head, kv_head;  // own; with own keys, head is the first of the group
    int own, own_rows;  // first own row of the sequence, how many the sequence has
    int other_rows;
    int begin = 0, end = 0, sink_end = 0;  // tiles of other rows: [0, sink_end) and [begin, end)

    // Block (x, y): x = head + heads * sequence, y the tile. Tiles with the longest walks under a
    // causal mask come first.
    __device__ explicit TwoPassWalk(const Problem& p) {
        const int pair = static_cast<int>(blockIdx.x);
        const int tile = static_cast<int>(kKeys ? blockIdx.y : gridDim.y - 1 - blockIdx.y);
        const int heads = kKeys ? p.kv_heads : p.heads;
        s = p.sequence(pair / heads);
        kv_head = kKeys ? pair % heads : pair % heads / p.group;
        head = kKeys ? kv_head * p.group : pair % heads;
        own = tile * kOwn;
        own_rows = kKeys ? s.keys : s.queries;
        other_rows = kKeys ? s.queries : s.keys;
        if (own >= own_rows) return;
        if constexpr (kKeys) {
            const QueryTiles<kOther> seen(p.mask, s, own, min(kOwn, own_rows - own));
            begin = seen.begin;
            end = seen.end;
        } else {
            const KeyTiles<kOther> seen(p.mask, s.position(own),
                                        s.position(min(own + kOwn, own_rows) - 1), s.keys);
            begin = seen.begin;
            end = seen.end;
            sink_end = seen.sink_end;
        }
    }
    __device__ bool sees(const Problem& p, int x, int y) const {
        const int query = kKeys ? y : x, key = kKeys ? x : y;
        return query < s.queries && p.mask.sees(s.position(query), key, s.keys);
    }
    // Whether every own row sees, or is seen by, every row of the other tile, and no row is
    // missing.
    __device__ bool whole(const Problem& p, int other) const {
        if (own + kOwn > own_rows || other + kOther > other_rows) return false;
        const int query = kKeys ? other : own, key = kKeys ? own : other;
        const int first = s.position(query), last = first + (kKeys ? kOther : kOwn) - 1;
        const int end = key + (kKeys ? kOwn : kOther);
        return end <= p.mask.hi(first, s.keys) && (key >= p.mask.lo(last) || end <= p.mask.sinks);
    }
    __device__ const View& a1(const Problem& p) const { return kKeys ? p.k : p.q; }
    __device__ const View& a2(const TwoPassArgs& a) const { return kKeys ? a.p.v : a.views.dout; }
    __device__ const View& b1(const Problem& p) const { return kKeys ? p.q : p.k; }
    __device__ const View& b2(const TwoPassArgs& a) const { return kKeys ? a.views.dout : a.p.v; }
    __device__ std::int64_t own_token(int row) const { return (kKeys ? s.k : s.q) + row; }
    __device__ std::int64_t other_token(int row) const { return (kKeys ? s.q : s.k) + row; }
};

// Makes the arguments and launches the kernel that writes delta of every query and head to scratch.
// `own` is the number of rows of a tile; throws where there are more tiles than a grid can have.
TwoPassArgs two_pass_args(const Context& ctx, const Problem& p, const BackwardViews& views,
                          Stamp* stamp, int own);

}  // namespace mr::cuda::flash
