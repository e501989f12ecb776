// Shared by the attention kernels over pages: which keys a row sees, and how the partial results of
// parts of the keys (parts.h) are combined.
#pragma once

#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/cuda/mma.cuh"
#include "ops/attention/paged/parts.h"
#include "ops/attention/paged/problem.h"

namespace mr::cuda::attn {

// Decode: rows of q that share their loads of keys and values; a row is (token, head of the kv
// head's group), tokens outermost.
inline constexpr int kTileRows = 8;
inline constexpr int kDecodeThreads = 128;
inline constexpr float kLog2e = 1.4426950408889634f;

struct Args {
    void* out;           // [tokens, heads, head_dim]
    const void* q;       // [tokens, heads, head_dim]
    const void* keys;    // [pages, kv_heads, 32, head_dim]
    const void* values;  // as keys
    const std::int32_t* first;
    const std::int32_t* positions;
    const std::int32_t* pages;  // [sequences, max_pages], circular (page_table.h)
    int max_pages, max_keys;
    // Sinks (parts.h, view_lead): what asks them, as q; whose they are and how many, with the
    // window; and their pages. Null: q; all have the mask's; the entries in `pages`.
    const void* q_sinks;
    const int2* streams;         // [sequences]
    const std::int32_t* fronts;  // [sequences, max_fronts]
    int max_fronts;
    int shorts;  // parts_of()
    int heads, kv_heads, group, head_dim;
    int row_tiles;  // of a sequence of max_count rows
    ops::AttentionMask mask;
    float scale;  // times log2(e): weights are powers of two

    // The partial results of every (row, head) slot, decode form only.
    unsigned* counters;  // [slots]            blocks that have finished
    float2* tops;        // [slots, max_parts] greatest score (times scale), sum of weights
    float* sums;         // [slots, max_parts, head_dim] sum of weight * value
    int max_parts;
    Stamp* stamp;
};

struct KeyRange {
    int lo, hi;
    __device__ __forceinline__ bool holds(int key) const { return key >= lo && key < hi; }
};

// The slots of a row's parts in its partial results: part p has slot p, and the parts of the sinks
// are moved up next to the others by a multiple of four, so that no loop runs over the gap. Slots
// [first, sinks) and [begin, end) are in use; `first` is a multiple of four.
struct Places {
    int first, sinks, begin, end;
    __device__ __forceinline__ bool hold(int place) const {
        return place < end && (place >= begin || place < sinks);
    }
};

// kTileRows rows of one sequence and kv head, and the keys that they see. Filled in two steps,
// because a kernel issues other loads while it waits for the position.
struct Tile {
    int first, count;  // the sequence: rows [first, first + count) of the batch
    int row, rows;     // the tile: rows [row, row + rows) of count * group; rows <= 0: none
    int slot;          // of the first row in the partial results; the next is kv_heads further
    int keys;          // row t of the sequence stands at position keys - count + t
    KeyRange range;    // what any of the rows sees besides the sinks
    int begin, end;    // the parts it touches
    int ahead;         // parts of the sinks alone: [0, ahead), no more than begin
    // With sinks or a stream, keys have other numbers than in their sequence: those of the window
    // are `shift` less, and `keys` too.
    int shift;
    int sinks, window;  // window 0: all before is seen
    int sinks_end;      // of the sinks that any of the rows sees

    __device__ int token(const Args& a, int r) const { return (row + r) / a.group; }
    // Where row r's (token, head) begins in q and out, in elements.
    __device__ std::int64_t at(const Args& a, int r, int kv_head, int dim) const {
        const int t = token(a, r), g = (row + r) - t * a.group;
        return (static_cast<std::int64_t>(first + t) * a.heads + kv_head * a.group + g) * dim;
    }
    // What row r sees besides the sinks.
    __device__ KeyRange sees(const Args& a, int r) const {
        const int position = keys - count + token(a, r);
        return {seen_from(window, sinks - shift, position),
                seen_to(a.mask, keys + shift, position + shift) - shift};
    }
    // ... and of a part.
    __device__ KeyRange sees(const Args& a, int r, int part) const {
        const KeyRange own = sees(a, r);
        return part < ahead ? KeyRange{0, min(sinks, own.hi + shift)} : own;
    }
    // The second step, with the position of the sequence's last row. The bounds never fall with the
    // row, so the first and the last row of the tile give those of all. kViews: there may be sinks
    // and streams.
    template <bool kViews = true>
    __device__ void see(const Args& a, int last_position, int sequence) {
        shift = 0;
        sinks = kViews ? a.mask.sinks : 0;
        window = a.mask.window;
        bool viewed = sinks > 0;
        if (kViews && a.streams) {
            const int2 stream = a.streams[sequence];
            viewed = stream.y > 0;
            sinks = stream.x;
            window = viewed && (window == 0 || stream.y < window) ? stream.y : window;
        }
        keys = viewed ? last_position + 1 : min(last_position + 1, a.max_keys);
        if (viewed) {
            shift = view_shift(sinks, sees(a, 0).lo);
            keys -= shift;
        }
        range = {sees(a, 0).lo, sees(a, rows - 1).hi};
        const int shorts = kViews ? a.shorts : kShortParts;
        begin = part_of(range.lo, shorts);
        end = range.hi > range.lo ? part_of(range.hi - 1, shorts) + 1 : begin;
        sinks_end = min(sinks, range.hi + shift);
        ahead = parts_of(sinks_end, kAllShort);
    }
    // The end of the visible keys of a part.
    __device__ int part_end(const Args& a, int part) const {
        return min(part_begin(part + 1, a.shorts), part < ahead ? sinks_end : range.hi);
    }
    // The entry of a key of the part in table_of(); behind the sinks, that of the last one.
    __device__ int entry(const Args& a, int part, int key) const {
        const int page = key / kPageKeys;
        return part < ahead ? min(page, (sinks_end - 1) / kPageKeys)
                            : ops::table_entry(page + shift / kPageKeys, a.max_pages);
    }
    // In the order of keys: part(0) ... part(parts() - 1).
    __device__ int parts() const { return ahead + end - begin; }
    __device__ int part(int i) const { return i < ahead ? i : begin + i - ahead; }
    __device__ Places places() const {
        const int first = max(0, begin / 4 * 4 - (ahead + 3) / 4 * 4);
        return {first, first + ahead, begin, end};
    }
    __device__ int place(int part) const { return part < begin ? places().first + part : part; }
};
__device__ __forceinline__ Tile rows_at(const Args& a, int s, int tile, int kv_head) {
    Tile t{};
    const int first_of_all = a.first[0];
    t.first = a.first[s];
    t.count = a.first[s + 1] - t.first;
    t.row = tile * kTileRows;
    t.rows = min(kTileRows, t.count * a.group - t.row);
    t.slot = ((t.first - first_of_all) * a.group + t.row) * a.kv_heads + kv_head;
    return t;
}
__device__ __forceinline__ int last_position(const Args& a, const Tile& t) {
    return a.positions[t.first + t.count - 1];
}

// Pages of sinks, or those of the others.
__device__ __forceinline__ const std::int32_t* table_of(const Args& a, int sequence, bool sinks) {
    if (sinks && a.fronts) return a.fronts + static_cast<std::int64_t>(sequence) * a.max_fronts;
    return a.pages + static_cast<std::int64_t>(sequence) * a.max_pages;
}
// What the rows of a part ask.
template <typename T>
__device__ __forceinline__ const T* asking(const Args& a, bool sinks) {
    return static_cast<const T*>(sinks && a.q_sinks ? a.q_sinks : a.q);
}

// The first element of key `key` in the cache, whose page is `page`.
template <typename T>
__device__ __forceinline__ const T* cache_at(const Args& a, const void* cache, int page,
                                             int kv_head, int key, int dim) {
    const std::int64_t row =
        (static_cast<std::int64_t>(page) * a.kv_heads + kv_head) * kPageKeys + key % kPageKeys;
    return static_cast<const T*>(cache) + row * dim;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The number to subtract before the exponential: 0 for a row without a finite score, whose weights
// are zero then.
__device__ __forceinline__ float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Arrives at a counter. True in every thread of the last of `teams` teams, which resets the counter
// and can read from L2 what the others wrote before they arrived. `flag` is in shared memory.
template <typename Team>
__device__ __forceinline__ bool last_to_arrive(unsigned* counter, unsigned teams, bool* flag,
                                               Team team) {
    team.sync();
    if (team.thread() == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(counter)
                     : "memory");
        *flag = before + 1 == teams;
        if (*flag) *counter = 0;
    }
    team.sync();
    return *flag;
}

__device__ __forceinline__ float normalised(float sum, float weight) {
    return weight == 0 ? 0.0f : sum / weight;
}
template <typename T>
__device__ __forceinline__ void store_normalised(const Args& a, std::int64_t at, float sum,
                                                 float weight) {
    static_cast<T*>(a.out)[at] = from_f32<T>(normalised(sum, weight));
}
// Tile `tile` of `tiles` for a kernel in which every block lists all tiles; an empty tile past the
// last. Rows that see nothing have no part, so this function writes their zeros.
template <typename T, int D>
__device__ __forceinline__ Tile listed_tile(const Args& a, int tiles, int tile) {
    Tile t{};
    if (tile < tiles) {
        t = rows_at(a, tile / a.row_tiles, tile % a.row_tiles, 0);
        if (t.rows > 0) t.see(a, last_position(a, t), tile / a.row_tiles);
    }
    if (t.rows > 0 && t.parts() == 0 &&
        tile % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x)) {
        for (int head = 0; head < a.kv_heads; ++head) {
            for (int i = 0; i < t.rows * D; ++i) {
                store_normalised<T>(a, t.at(a, i / D, head, D) + i % D, 0, 0);
            }
        }
    }
    return t;
}

// Where a decode team reads its inputs and writes its results: memory, between kernels.
// step_link.cuh has another link.
struct MemoryLink {
    static constexpr bool kTagged = false;
    // Elements `at` and at + 1 of out; at is even.
    template <typename T>
    __device__ __forceinline__ void store(const Args& a, std::int64_t at, const float2& sums,
                                          float weight) const {
        const float2 pair{normalised(sums.x, weight), normalised(sums.y, weight)};
        T* to = static_cast<T*>(a.out) + at;
        if constexpr (sizeof(T) == 2) {
            *reinterpret_cast<std::uint32_t*>(to) = pack<T>(pair.x, pair.y);
        } else {
            *reinterpret_cast<float2*>(to) = pair;
        }
    }
    // Writes columns d and d + 1 of a row's partial result to slot `place`, and with the first
    // columns its greatest score and sum of weights.
    template <int D>
    __device__ __forceinline__ void store_part(const Args& a, std::int64_t slot, int place, int d,
                                               const float2& sums, const float2& top) const {
        const std::int64_t at = slot * a.max_parts + place;
        *reinterpret_cast<float2*>(a.sums + at * D + d) = sums;
        if (d == 0) a.tops[at] = top;
    }
};
// The parts of one row in memory; every warp has the loads of kCount of them in flight.
template <int kCount>
struct MemoryParts {
    const float2* tops;
    const float* sums;
    int dim;
    __device__ MemoryParts(const Args& a, std::int64_t slot, int dim_)
        : tops(a.tops + slot * a.max_parts), sums(a.sums + slot * a.max_parts * dim_), dim(dim_) {}
    static constexpr int kInFlight = kCount;
    // A part's greatest score and sum of weights.
    __device__ __forceinline__ float2 top(int p) const { return __ldcg(tops + p); }
    // The same, and four columns of the sums, of every fourth part from p on.
    __device__ __forceinline__ void load(int p, const Places& places, int column,
                                         float2 (&of)[kInFlight], float4 (&x)[kInFlight]) const {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i, p += 4) {
            of[i] = float2{-INFINITY, 0};
            x[i] = float4{0, 0, 0, 0};
            if (!places.hold(p)) continue;
            of[i] = top(p);
            x[i] = __ldcg(reinterpret_cast<const float4*>(
                sums + static_cast<std::int64_t>(p) * dim + column));
        }
    }
};

// Combines the parts of a tile's rows in an order that depends on the parts' numbers alone: warp p
// % 4 adds part p, and one tree adds the warps' sums. `shared` holds 4 * (dim + 2) floats. A part
// in which a row sees nothing adds exact zeros. parts_of_slot(slot): where a row's are.
template <typename T, typename Team, typename Link, typename PartsOf>
__device__ __forceinline__ void combine(const Args& a, const Tile& t, int kv_head, int dim,
                                        float* shared, Team team, const Link& link,
                                        PartsOf&& parts_of_slot) {
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const Places places = t.places();
    const int first = places.first + warp;
    float* sums = shared;             // [4, dim]
    float* weights = sums + 4 * dim;  // [4]
    float* tops = weights + 4;        // [4]
    for (int r = 0; r < t.rows; ++r) {
        const auto parts = parts_of_slot(t.slot + static_cast<std::int64_t>(r) * a.kv_heads);
        constexpr int kInFlight = decltype(parts)::kInFlight;
        float2 of[kInFlight];
        float4 x[kInFlight];
        // The loads of the first parts' sums are in flight together with those of all tops.
        parts.load(first, places, min(4 * lane, dim - 4), of, x);
        float top = -INFINITY;
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) top = fmaxf(top, of[i].x);
        for (int p = first + 4 * (kInFlight + lane); p < places.end; p += 128) {
            if (places.hold(p)) top = fmaxf(top, parts.top(p).x);
        }
        top = warp_max(top);
        if (lane == 0) tops[warp] = top;
        team.sync();
        const float base = base_of(fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])));
        for (int column = 4 * lane; column < dim; column += 128) {
            float4 sum{0, 0, 0, 0};
            float weight = 0;
            for (int p0 = first; p0 < places.end; p0 += 4 * kInFlight) {
                if (p0 != first || column >= 128) {
                    parts.load(p0, places, column, of, x);
                }
#pragma unroll
                for (int i = 0; i < kInFlight; ++i) {
                    const float w = exp2_fast(of[i].x - base);
                    weight = fmaf(w, of[i].y, weight);
                    sum.x = fmaf(w, x[i].x, sum.x);
                    sum.y = fmaf(w, x[i].y, sum.y);
                    sum.z = fmaf(w, x[i].z, sum.z);
                    sum.w = fmaf(w, x[i].w, sum.w);
                }
            }
            *reinterpret_cast<float4*>(sums + warp * dim + column) = sum;
            if (column == 0) weights[warp] = weight;
        }
        team.sync();
        const float weight = (weights[0] + weights[1]) + (weights[2] + weights[3]);
        const std::int64_t at = t.at(a, r, kv_head, dim);
        for (int d = 2 * team.thread(); d < dim; d += 2 * kDecodeThreads) {
            const auto sum = [&](int i) {
                return (sums[i] + sums[dim + i]) + (sums[2 * dim + i] + sums[3 * dim + i]);
            };
            link.template store<T>(a, at + d, {sum(d), sum(d + 1)}, weight);
        }
        team.sync();  // the next row overwrites the shared sums
    }
}

// The end of a decode team that has written its parts, one of at most `most` teams on the same
// rows: the last team combines. `flag` and `shared` are free shared memory.
template <typename T, typename Team>
__device__ __forceinline__ void finish(const Args& a, const Tile& t, int kv_head, int dim, int most,
                                       float* shared, bool* flag, Team team) {
    const int teams = min(most, t.parts());
    if (teams > 1) {
        if (!last_to_arrive(a.counters + t.slot, static_cast<unsigned>(teams), flag, team)) return;
    } else {
        team.sync();
    }
    combine<T>(a, t, kv_head, dim, shared, team, MemoryLink{},
               [&](std::int64_t slot) { return MemoryParts<8>(a, slot, dim); });
}

// The arguments of attention_decode() for any kernel that runs it: args without a stamp; tiles = 0
// where there is nothing to do.
struct Decode {
    Args args{};
    std::int64_t tiles = 0;  // of rows, in all sequences
    OpRecord work{};
    DecodeKernel kernel(int multiprocessors) const {
        return decode_kernel({tiles, args.kv_heads, args.group, args.max_keys, args.head_dim},
                             multiprocessors);
    }
    // The number of parts of a tile to work on in parallel, where about `teams` teams find room.
    int parts_at_once(std::int64_t teams) const {
        const std::int64_t enough = teams / (tiles * args.kv_heads);
        return static_cast<int>(
            std::clamp<std::int64_t>(enough, 1, std::min(args.max_parts, 65535)));
    }
};
Decode decode_of(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                 const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                 Tensor q_sinks = {});

// The host's side: attention_cuda.cu, decode.cu, many.cu, stream.cu,
// plain.cu. Each says whether it took the work.
bool decode_many_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                 std::int64_t tiles, const Args& args);
bool decode_stream_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                   std::int64_t tiles, const Args& args);
bool decode_on_tensor_cores(const Context& ctx, DType dtype, dim3 grid, const Args& args);
// out, of what rows see from their window on, becomes that with the sinks before it (sinks.cu).
// lse [heads, rows]: log of the sums of exp(score) so far.
void add_sinks(const Context& ctx, DType dtype, const ops::DeviceBatch& batch, const Args& args,
               const float* lse, int rows);
void decode_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args);
void prefill_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args);

}  // namespace mr::cuda::attn
