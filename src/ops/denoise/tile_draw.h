// The guess for one place from a row of logits, by tiles of 16 tokens: one record per tile, from
// which the statistics of the whole row and a draw without filters are computed. A product that
// makes records needs no memory for logits.
//
// The draw has two levels. Each tile draws a candidate by the weights of its tokens, with its own
// uniform number: Philox at (seed, position, step and tile). The row draws a tile by the weights of
// the tiles, with the uniform number of sample(): Philox at (seed, position, step). The candidate
// of that tile is the token. So its probability is its share of the row.
//
// CPU and GPU share these functions and have the same bits: there is no product here that a
// compiler could fuse with a sum, and sums are integers, which are the same in any order.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/philox.h"

#ifdef __CUDACC__
#define MR_TILE_DRAW __host__ __device__ __forceinline__
#else
#define MR_TILE_DRAW inline
#endif
#ifdef __CUDA_ARCH__
#define MR_TILE_UNROLL _Pragma("unroll")
#else
#define MR_TILE_UNROLL
#endif

namespace mr::ops {

inline constexpr int kDrawTile = 16;  // tokens per tile
inline constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

constexpr std::int64_t draw_tiles(std::int64_t vocab) {
    return (vocab + kDrawTile - 1) / kDrawTile;
}

struct alignas(8) TileRecord {
    float best;            // the largest logit
    std::uint32_t sum;     // sum of e^(x - best), in units of 2^-27
    std::uint32_t spread;  // sum of e^(x - best) (best - x), same units; 0 if no entropy is wanted
    std::uint32_t weight;  // sum of e^((x - best) / temperature), same units; 0 if nothing is drawn
    float logit;           // the candidate's logit
    // The candidate's place in the tile in the lowest 4 bits; the next bit is 1 if a logit is NaN.
    std::uint32_t marks;

    static constexpr std::uint32_t kNan = 16;
    MR_TILE_DRAW int candidate() const { return static_cast<int>(marks % kNan); }
    MR_TILE_DRAW bool nan() const { return (marks & kNan) != 0; }
    bool operator==(const TileRecord&) const = default;
};

// A row's request to its tiles. The candidate is the token `truth` if given, the most probable one
// (the first of equals) at temperature 0, and drawn otherwise.
struct TileAsk {
    float temperature = 0;
    std::int32_t truth = -1;
    bool entropy = false;
    std::uint64_t seed = 0, position = 0;
    std::uint32_t step = 0;

    MR_TILE_DRAW bool draws() const { return truth < 0 && temperature > 0; }
};

namespace tile {

MR_TILE_DRAW float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}

// e^d for d <= 0, to 2 ulp; 0 below e^-40, which would not change any sum here.
MR_TILE_DRAW float falling(float d) {
    if (!(d > -40.0f)) return 0;
    constexpr float kRounding = 0x1.8p23f;  // adding it leaves the nearest integer
    const float shifted = fused(d, 1.44269504f, kRounding);
    const float n = shifted - kRounding;
    float r = fused(n, -0.693359375f, d);  // d - n ln(2), in two parts
    r = fused(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fused(p, r, 1.3981999507e-3f);
    p = fused(p, r, 8.3334519073e-3f);
    p = fused(p, r, 4.1665795894e-2f);
    p = fused(p, r, 1.6666665459e-1f);
    p = fused(p, r, 5.0000001201e-1f);
    const float e = fused(p, r * r, r) + 1.0f;
    // 2^n via the exponent: its low bits are those of `shifted`.
    const std::uint32_t power = std::bit_cast<std::uint32_t>(shifted) << 23;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(e) + power);
}
// Infinite logits share all the probability.
MR_TILE_DRAW float below(float x, float best) { return x == best ? 0.0f : x - best; }
MR_TILE_DRAW float rate_of(float temperature) { return 1.0f / temperature; }
MR_TILE_DRAW float cooled(float d, float rate) { return d == 0 ? 0.0f : d * rate; }
MR_TILE_DRAW std::uint32_t units(float part) { return static_cast<std::uint32_t>(part * 0x1p27f); }

// The cumulative weight that a draw by `word` selects, from 1 to `kept`: the first candidate with
// which the sum reaches it is drawn. (u * kept, u of 24 bits, exactly.)
MR_TILE_DRAW std::uint64_t target_in(std::uint32_t word, std::uint64_t kept) {
    const std::uint64_t u = word >> 8, low = kept & 0xffffff;
    return u * (kept >> 24) + (u * low >> 24) + 1;
}
MR_TILE_DRAW std::uint32_t row_word(const TileAsk& ask) {
    return philox(ask.seed, ask.position, ask.step)[0];
}
MR_TILE_DRAW std::uint32_t tile_word(const TileAsk& ask, int tile) {
    const std::uint64_t stream = static_cast<std::uint64_t>(tile + 1) << 32 | ask.step;
    return philox(ask.seed, ask.position, stream)[0];
}

// The weights of a tile's tokens at a temperature, and their sum.
MR_TILE_DRAW std::uint32_t weigh(const float (&x)[kDrawTile], float best, float temperature,
                                 std::uint32_t (&weights)[kDrawTile]) {
    const float rate = rate_of(temperature);
    std::uint32_t sum = 0;
    MR_TILE_UNROLL
    for (int i = 0; i < kDrawTile; ++i) {
        weights[i] = units(falling(cooled(below(x[i], best), rate)));
        sum += weights[i];
    }
    return sum;
}
// Which token the tile draws.
MR_TILE_DRAW int candidate(const std::uint32_t (&weights)[kDrawTile], std::uint32_t sum,
                           std::uint32_t word) {
    const std::uint64_t target = target_in(word, sum);
    std::uint32_t to = 0;
    int before = 0;
    MR_TILE_UNROLL
    for (int i = 0; i < kDrawTile; ++i) {
        to += weights[i];
        before += to < target ? 1 : 0;
    }
    return before;
}

// ---- a tile in its row; d: the tile's best logit minus the row's ----

// A sum of the tile in units of 2^-40 of the row's best; for weights, `d` over the temperature.
MR_TILE_DRAW std::uint64_t share(std::uint32_t sum, float d) {
    return static_cast<std::uint64_t>(static_cast<float>(sum) * falling(d) * 0x1p13f);
}
// The same for the sum of e^(x - row's best) (row's best - x).
MR_TILE_DRAW std::uint64_t spread_share(const TileRecord& record, float d) {
    const float e = falling(d);
    if (e == 0) return 0;
    const float nats = fused(-d, static_cast<float>(record.sum), static_cast<float>(record.spread));
    return static_cast<std::uint64_t>(nats * e * 0x1p13f);
}

}  // namespace tile

// The record of tile `number`: x are the logits of its tokens, -inf for tokens without probability
// or past the vocabulary.
MR_TILE_DRAW TileRecord tile_record(const float (&x)[kDrawTile], int number, const TileAsk& ask) {
    TileRecord out{};
    out.best = kNoLogit;
    int place = 0;
    bool nan = false;
    MR_TILE_UNROLL
    for (int i = 0; i < kDrawTile; ++i) {
        nan = nan || x[i] != x[i];
        if (x[i] > out.best) {
            out.best = x[i];
            place = i;
        }
    }
    std::uint32_t weights[kDrawTile];
    MR_TILE_UNROLL
    for (int i = 0; i < kDrawTile; ++i) {
        const float d = tile::below(x[i], out.best), e = tile::falling(d);
        weights[i] = tile::units(e);
        out.sum += weights[i];
        if (ask.entropy && e > 0) out.spread += tile::units(e * -d);
    }
    if (ask.draws()) {
        out.weight =
            ask.temperature == 1.0f ? out.sum : tile::weigh(x, out.best, ask.temperature, weights);
        place = tile::candidate(weights, out.weight, tile::tile_word(ask, number));
    } else if (ask.truth >= 0) {
        place = ask.truth % kDrawTile;
    }
    MR_TILE_UNROLL
    for (int i = 0; i < kDrawTile; ++i) {
        if (i == place) out.logit = x[i];
    }
    out.marks = static_cast<std::uint32_t>(place) | (nan ? TileRecord::kNan : 0);
    return out;
}

}  // namespace mr::ops

#undef MR_TILE_DRAW
#undef MR_TILE_UNROLL
