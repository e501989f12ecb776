// Finish::records of linear_small(): the logits of a tile and token become a record
// (ops/denoise/tile_draw.h). Kernels with this finish are separate instances, with RecordParams.
#pragma once

#include <type_traits>

#include "ops/denoise/tile_ask.cuh"
#include "ops/linear/small_finish.cuh"

namespace mr::cuda::small {

static_assert(kTileRows == ops::kDrawTile);

template <typename P>
inline constexpr bool kMakesRecords = std::is_same_v<P, RecordParams>;

// Which of up to kPackedRows rows a product computes. Bit r: row r. All threads of a warp call it.
template <typename P>
__device__ __forceinline__ std::uint64_t asked_rows(const P& p) {
    static_assert(kPackedRows == 64);
    if constexpr (kMakesRecords<P>) {
        if (p.packed) {
            const int lane = static_cast<int>(threadIdx.x) % 32;
            const auto asks = [&](int row) {
                return __ballot_sync(~0u, row < p.rows && p.guesses[row].sampling.active);
            };
            return asks(lane) | std::uint64_t{asks(lane + 32)} << 32;
        }
    }
    return ~std::uint64_t{0} >> (64 - p.rows);
}
// How many of them come before row `row`: the index of its packed input.
__device__ __forceinline__ int packed_place(std::uint64_t asked, int row) {
    return __popcll(asked & ((std::uint64_t{1} << row) - 1));
}

// Writes one record, by one thread. sums: of the tile's 16 rows, 16-byte aligned.
__device__ __forceinline__ void put_record(const RecordParams& p, int tile, int token,
                                           const float* sums) {
    const GuessRow& row = p.guesses[token];
    if (tile >= p.tiles || !row.sampling.active) return;
    float v[kTileRows];
#pragma unroll
    for (int i = 0; i < kTileRows / 4; ++i) {
        const float4 four = reinterpret_cast<const float4*>(sums)[i];
        v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
    p.records[static_cast<std::int64_t>(token) * p.tiles + tile] =
        tile_record(tile, p.n, p.mask, tile_ask(row),
                    [&](int i) { return p.bias ? v[i] + p.bias[tile * kTileRows + i] : v[i]; });
}

// Writes the records of `count` adjacent tiles from `tile` on, by a block of kAll threads, for
// `tokens` tokens; where[i].x: the row of token i. sums: f32 [8 parts, part_step apart][tokens,
// token_step apart][rows]; the sums of the parts are added as in add_warps() and replace those of
// the first part.
template <int kAll>
__device__ __forceinline__ void finish_records(const RecordParams& p, const int2* where, int tokens,
                                               int tile, int count, float* sums, int part_step,
                                               int token_step) {
    const int quads = count * (kTileRows / 4);
    for (int i = static_cast<int>(threadIdx.x); i < quads * tokens; i += kAll) {
        float* const at = sums + i / quads * token_step + i % quads * 4;
        float4 v[kWarps];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) v[w] = *reinterpret_cast<float4*>(at + w * part_step);
        const auto add = [](float4 a, float4 b) {
            return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
        };
        *reinterpret_cast<float4*>(at) =
            add(add(add(v[0], v[1]), add(v[2], v[3])), add(add(v[4], v[5]), add(v[6], v[7])));
    }
    __syncthreads();
    if (!p.records) {
        const int most = min(count * kTileRows, p.n - tile * kTileRows);
        for (int i = static_cast<int>(threadIdx.x); i < most * tokens; i += kAll) {
            const int token = i / most, in = i % most, row = tile * kTileRows + in;
            const float v = sums[token * token_step + in];
            static_cast<float*>(p.out)[static_cast<std::int64_t>(where[token].x) * p.n + row] =
                p.bias ? v + p.bias[row] : v;
        }
        return;
    }
    // Adjacent threads take adjacent tokens, whose sums lie in different banks.
    for (int i = static_cast<int>(threadIdx.x); i < count * tokens; i += kAll) {
        const int token = i % tokens, in = i / tokens;
        put_record(p, tile + in, where[token].x, sums + token * token_step + in * kTileRows);
    }
}

// For kernels for 5 to 32 tokens: records what the finish needs of each token; `asked` has their
// rows. A barrier comes before the finish.
template <typename P>
__device__ __forceinline__ void note_places(const P& p, std::uint64_t asked, int2* where) {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= p.rows) return;
    if constexpr (kMakesRecords<P>) {
        if (asked >> row & 1) where[packed_place(asked, row)].x = row;
    } else {
        if (p.finish == Finish::qkv) where[row] = place_of(p, row);
    }
}

// Any finish of the sums of a block of these kernels, with shape S.
template <typename S, typename T, typename P>
__device__ __forceinline__ void finish_sums(const P& p, const int2* where, int tokens, int tile,
                                            int count, float* sums) {
    if constexpr (kMakesRecords<P>) {
        finish_records<S::kThreads>(p, where, tokens, tile, count, sums, S::kPartSums,
                                    S::kSumStride);
    } else {
        finish_strip<S::kThreads, T>(p, where, tile, count, [&](int token, int row) {
            return add_warps(sums + token * S::kSumStride + row, S::kPartSums);
        });
    }
}

}  // namespace mr::cuda::small
