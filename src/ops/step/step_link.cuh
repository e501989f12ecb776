// How the products and the attention of a step of one token pass on their results: as tagged words
// (core/cuda/signal.cuh), from the block that computes a word to every block that needs it. The
// functions that read and compute are those of the kernels that a step replaces; these structs are
// their inputs and outputs.
#pragma once

#include "core/cuda/mma.cuh"
#include "core/cuda/signal.cuh"
#include "ops/attention/paged/products.cuh"
#include "ops/linear/small_input.cuh"

namespace mr::cuda::step {

// A row of words in flight: one per f32, or per two 16-bit numbers.
struct TaggedRow {
    const Word* words;
    unsigned tag;
    float4* room;  // shared memory of kRoomBytes: for a row that is needed in two orders

    static constexpr bool kTwice = false;
    static constexpr int kChunks = small::kHeld * small::kInputThreads;
    static constexpr int kRoomBytes = (kChunks + kChunks / 8) * 16;

    template <int kCount, typename Column>
    __device__ __forceinline__ void floats(float4 (&v)[kCount], int k, Column&& column) const {
        uint4 w[2 * kCount];
        receive(w, tag, [&](int i) {
            const int c = column(i / 2);
            return c < k ? words + c + i % 2 * 2 : nullptr;
        });
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            v[j] = {__uint_as_float(w[2 * j].x), __uint_as_float(w[2 * j].z),
                    __uint_as_float(w[2 * j + 1].x), __uint_as_float(w[2 * j + 1].z)};
        }
    }
    template <int kCount, typename Column>
    __device__ __forceinline__ void fours(uint2 (&v)[kCount], int k, Column&& column) const {
        uint4 w[kCount];
        receive(w, tag, [&](int j) {
            const int c = column(j);
            return c < k ? words + c / 2 : nullptr;
        });
#pragma unroll
        for (int j = 0; j < kCount; ++j) v[j] = {w[j].x, w[j].z};
    }
    template <int kCount, typename Column>
    __device__ __forceinline__ void sixteens(uint4 (&v)[kCount][2], int k, Column&& column) const {
        uint4 w[4 * kCount];
        receive(w, tag, [&](int i) {
            const int c = column(i / 4);
            return c < k ? words + c / 2 + i % 4 * 2 : nullptr;
        });
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 a = w[4 * j + 2 * h], b = w[4 * j + 2 * h + 1];
                v[j][h] = {a.x, a.z, b.x, b.z};
            }
        }
    }
    // A gap follows every eight chunks, so that threads that each read four neighbours use all
    // banks.
    __device__ __forceinline__ void keep(int chunk, const float4& v) const {
        room[chunk + chunk / 8] = v;
    }
    __device__ __forceinline__ float4 kept(int chunk) const { return room[chunk + chunk / 8]; }
};

// A team's shared memory.
template <typename T, int D>
struct AttendShared {
    attn::DecodeShared<D> decode;
    alignas(16) T rows[(2 + attn::kTileRows) * D];  // the newest key and value; q
};

// The links of one layer's attention.
struct TaggedLink {
    // A word per two numbers: q, the newest key, its value, then the queries for the sinks.
    const Word* qkv;
    unsigned qkv_tag;
    Word* out;         // one word per two numbers
    Word* part_words;  // [heads, most_parts, head_dim + 2]: largest score, sum of weights, sums
    unsigned tag;      // of out and parts
    int most_parts;
    void* rows;  // of AttendShared or ViewShared
    Stamp* stamp;

    static constexpr bool kTagged = true;

    template <typename T, int D, typename Team>
    __device__ __forceinline__ void receive(const attn::Args& a, const attn::Tile& t, int kv_head,
                                            Team team) const {
        const int q_dim = a.heads * D, kv_dim = a.kv_heads * D;
        constexpr int kPieces = D / 4;  // per row: two words each
        for (int i = team.thread(); i < (2 + t.rows) * kPieces; i += attn::kDecodeThreads) {
            const int row = i / kPieces, d = i % kPieces * 4;
            const int begin = row < 2 ? q_dim + row * kv_dim + kv_head * D
                                      : static_cast<int>(t.at(a, row - 2, kv_head, D));
            const uint4 v = cuda::receive(qkv + (begin + d) / 2, qkv_tag);
            *reinterpret_cast<uint2*>(static_cast<T*>(rows) + row * D + d) = {v.x, v.z};
        }
        team.sync();
        stamp_begin(stamp);
    }
    // For step_view.cuh: q of a tile of a head and, if needed, the queries for the sinks, the
    // newest key and value, and the rows of the next tile or head.
    template <typename T, int D, typename View, typename Team>
    __device__ __forceinline__ void receive_view(const attn::Args& a, const View& view, int head,
                                                 int row_tile, bool sinks, bool newest, bool second,
                                                 Team team) const {
        const int q_dim = a.heads * D, kv_dim = a.kv_heads * D;
        constexpr int kPieces = D / 4;
        const int row = head * a.group + row_tile * attn::kTileRows;  // index over all heads
        const int count = min(attn::kTileRows, a.group - row_tile * attn::kTileRows);
        const int own = (sinks && a.q_sinks ? 2 : 1) * count, kv = newest ? 2 : 0;
        const int all = own + kv + (second ? (a.q_sinks ? 2 : 1) * count : 0);
        for (int i = team.thread(); i < all * kPieces; i += attn::kDecodeThreads) {
            int r = i / kPieces, begin = 0, to = 0;
            const int d = i - r * kPieces;
            if (r >= own && r < own + kv) {
                to = r - own;
                begin = q_dim + to * kv_dim + head * D;
            } else {
                const bool next = r >= own + kv;
                if (next) r -= own + kv;
                to = 2 + r + (next ? 2 * count : 0);
                const bool of_sinks = r >= count;
                begin = static_cast<int>(
                            view.at(a, row + (next ? count : 0) + (of_sinks ? r - count : r), D)) +
                        (of_sinks ? q_dim + 2 * kv_dim : 0);
            }
            const uint4 v = cuda::receive(qkv + begin / 2 + 2 * d, qkv_tag);
            *reinterpret_cast<uint2*>(static_cast<T*>(rows) + to * D + 4 * d) = {v.x, v.z};
        }
        team.sync();
        stamp_begin(stamp);
    }
    template <typename T, int D>
    __device__ __forceinline__ const T* row(int i) const {
        return static_cast<const T*>(rows) + i * D;
    }
    template <typename T, int D>
    __device__ __forceinline__ const T* key() const {
        return row<T, D>(0);
    }
    template <typename T, int D>
    __device__ __forceinline__ const T* value() const {
        return row<T, D>(1);
    }
    template <typename T, int D>
    __device__ __forceinline__ const T* q(int i) const {
        return row<T, D>(2 + i);
    }

    template <typename T>
    __device__ __forceinline__ void store(const attn::Args&, std::int64_t at, const float2& sums,
                                          float weight) const {
        const unsigned bits =
            pack<T>(attn::normalised(sums.x, weight), attn::normalised(sums.y, weight));
        send(out + at / 2, bits, tag);
    }

    template <int D>
    __device__ __forceinline__ void store_part(const attn::Args&, std::int64_t slot, int place,
                                               int d, const float2& sums, const float2& top) const {
        Word* to = part_words + (slot * most_parts + place) * (D + 2);
        send(to + 2 + d, sums.x, sums.y, tag);
        if (d == 0) send(to, top.x, top.y, tag);
    }
    template <int D>
    struct Parts {
        const Word* words;
        unsigned tag;
        static constexpr int kInFlight = 4;
        __device__ __forceinline__ float2 top(int p) const {
            const uint4 v = cuda::receive(words + p * (D + 2), tag);
            return {__uint_as_float(v.x), __uint_as_float(v.z)};
        }
        __device__ __forceinline__ void load(int p, const attn::Places& places, int column,
                                             float2 (&of)[kInFlight],
                                             float4 (&x)[kInFlight]) const {
            uint4 v[3 * kInFlight];
            cuda::receive(v, tag, [&](int i) -> const Word* {
                const int at = p + i / 3 * 4;
                if (!places.hold(at)) return nullptr;
                return words + at * (D + 2) + (i % 3 == 0 ? 0 : column + i % 3 * 2);
            });
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                const int at = p + i * 4;
                const uint4 top = v[3 * i], low = v[3 * i + 1], high = v[3 * i + 2];
                of[i] = {__uint_as_float(top.x), __uint_as_float(top.z)};
                if (!places.hold(at)) of[i].x = -INFINITY;
                x[i] = {__uint_as_float(low.x), __uint_as_float(low.z), __uint_as_float(high.x),
                        __uint_as_float(high.z)};
            }
        }
    };
    template <int D>
    __device__ __forceinline__ const Word* parts_of(std::int64_t slot) const {
        return part_words + slot * most_parts * (D + 2);
    }
    template <int D>
    __device__ __forceinline__ Parts<D> parts(std::int64_t slot) const {
        return {parts_of<D>(slot), tag};
    }
};

}  // namespace mr::cuda::step
