// Decode attention for sequences with several tiles of rows each: blocks of tokens that are filled
// in, short prompts (sm_80 and up). It has the bits of decode.cuh with another distribution of the
// work.
//
// The other kernels read the keys once for every tile of 8 rows. Here a block has up to 8 tiles of
// one sequence and head, a warp each, and copies every key and value to shared memory once for all
// of them, a part of 64 keys at a time. A warp does the work of a team's four warps, as in many.cu,
// and has all parts of its tile. First come the keys of all parts: their weights stay in shared
// memory, and the largest score of a row is known before its first value arrives. So the values of
// a part are added to the row's sums directly, in the order of combine(), and no partial result is
// written.
#include "core/cuda/copy.cuh"
#include "core/cuda/device.h"
#include "ops/attention/paged/warp_part.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kSeveralWarps = 8;
constexpr int kSeveralPages = kShortKeys / kPageKeys;
constexpr int kPagesOfPart = kStepKeys / kPageKeys;

// A warp's data of a part between its keys and its values.
struct Held {
    uint4 low[32], high[32];  // weights of the four groups of keys, a lane's share
    float2 factor[4][kSubs];  // [c]: factors of a group's values, rows 2 c and 2 c + 1
    float4 sums[4];           // largest score and sum of weights, of rows 2 c and 2 c + 1
};

template <int D>
struct SeveralShape {
    static constexpr int kRowBytes = 2 * D, kChunks = D / 8;
    static constexpr int kStages = 2;  // half a part each: its keys, or its values
    static constexpr int kStageBytes = kStepKeys * kRowBytes;
    static constexpr int kRing = kStages * kStageBytes;
    static constexpr int kOutRow = D + 8;  // elements: puts rows of a tile into different banks
};
// The order in which values arrive: every fourth part from place 0 on, then from place 1, ..., as
// combine() adds them. After the last, `part` is `end`.
struct PartOrder {
    int begin, end, part;
    __device__ PartOrder(int from, int to) : begin(from), end(to), part(from) { find(0); }
    __device__ void next() {
        const int place = part % 4;
        part += 4;
        if (part >= end) find(place + 1);
    }

  private:
    // The first part of a place, from `place` on.
    __device__ void find(int place) {
        for (; place < 4; ++place) {
            part = begin + (place - begin % 4 + 4) % 4;
            if (part < end) return;
        }
        part = end;
    }
};

// The copies of a block: keys of all parts that any of its tiles sees, then their values.
template <typename T, int D>
struct PartStream {
    using S = SeveralShape<D>;
    unsigned ring;
    const std::int32_t* pages;  // pages of the visible parts, in shared memory
    int head, begin, end;       // parts
    KeyRange keys;
    int slot, key_part;  // the next stage, and the next part of keys
    PartOrder values;

    // Always commits a group of copies.
    __device__ __forceinline__ void fetch(const Args& a) {
        const bool value = key_part == end;
        const int part = value ? values.part : key_part;
        if (part < end) {
            // A warp copies kRows rows at once, a lane 16 bytes of its row `own`.
            constexpr int kRows = 32 / S::kChunks;
            const int lane = static_cast<int>(threadIdx.x) % 32;
            const int warp = static_cast<int>(threadIdx.x) / 32;
            const int warps = static_cast<int>(blockDim.x) / 32;
            const int chunk = lane % S::kChunks, own = lane / S::kChunks;
            const int from = part * kStepKeys;
            const bool all = keys.lo <= from && from + kStepKeys <= keys.hi;
            const void* const cache = value ? a.values : a.keys;
            const unsigned stage = ring + slot * S::kStageBytes + own * S::kRowBytes;
#pragma unroll
            for (int page = 0; page < kPagesOfPart; ++page) {
                const T* const at = cache_at<T>(
                    a, cache, pages[(part - begin) * kPagesOfPart + page], head, own, D);
                const auto copy = [&](int row, bool on) {
                    const int place = swizzled_chunk(value, chunk, row + own) * 16;
                    copy16(stage + (page * kPageKeys + row) * S::kRowBytes + place,
                           at + row * D + chunk * 8, on);
                };
                const int key = from + page * kPageKeys + own;
                if (all) {
#pragma unroll 4
                    for (int row = warp * kRows; row < kPageKeys; row += warps * kRows) {
                        copy(row, true);
                    }
                } else {
#pragma unroll 1
                    for (int row = warp * kRows; row < kPageKeys; row += warps * kRows) {
                        copy(row, keys.holds(key + row));
                    }
                }
            }
            if (value) {
                values.next();
            } else {
                ++key_part;
            }
        }
        slot = slot + 1 == S::kStages ? 0 : slot + 1;
        commit_copies();
    }
};

template <typename T, int D>
__global__ void __maxnreg__(168) several_kernel(const __grid_constant__ Args a) {
    using S = SeveralShape<D>;
    let_next_start();
    extern __shared__ __align__(128) std::byte memory[];
    __shared__ std::int32_t pages[kSeveralPages];
    __shared__ int bounds[4][kSeveralWarps];
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, c = lane % 4;
    const int head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y);
    wait_for_previous();
    const StageClock clock(a.stamp);

    PlainTile t = rows_at<PlainTile>(a, sequence, static_cast<int>(blockIdx.z) * warps + warp, 0);
    const bool some = t.rows > 0;
    if (some) t.see(a, last_position(a, t), sequence);
    const bool sees_any = some && t.parts() > 0;
    if (lane == 0) {
        bounds[0][warp] = sees_any ? t.begin : 1 << 30;
        bounds[1][warp] = sees_any ? t.end : 0;
        bounds[2][warp] = sees_any ? t.range.lo : 1 << 30;
        bounds[3][warp] = sees_any ? t.range.hi : 0;
    }
    if (some && !sees_any) {
        for (int i = lane; i < t.rows * D; i += 32) {
            store_normalised<T>(a, t.at(a, i / D, head, D) + i % D, 0, 0);
        }
    }
    __syncthreads();
    int begin = bounds[0][0], end = bounds[1][0];
    KeyRange keys{bounds[2][0], bounds[3][0]};
    for (int w = 1; w < warps; ++w) {
        begin = min(begin, bounds[0][w]);
        end = max(end, bounds[1][w]);
        keys.lo = min(keys.lo, bounds[2][w]);
        keys.hi = max(keys.hi, bounds[3][w]);
    }
    if (end == 0) return;
    const std::int32_t* table = a.pages + static_cast<std::int64_t>(sequence) * a.max_pages;
    const int first_page = begin * kPagesOfPart;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * kPagesOfPart;
         i += static_cast<int>(blockDim.x)) {
        // Past the last key: any page; nothing of it is read.
        const int page = min(first_page + i, (keys.hi - 1) / kPageKeys);
        pages[i] = table[ops::table_entry(page, a.max_pages)];
    }
    __syncthreads();
    PartStream<T, D> stream{shared_address(memory), pages, head, begin, end, keys, 0, begin,
                            PartOrder(begin, end)};
#pragma unroll 1
    for (int i = 0; i + 1 < S::kStages; ++i) stream.fetch(a);

    // This warp's, by part.
    Held* const held = reinterpret_cast<Held*>(memory + S::kRing) + (warp * a.max_parts - begin);
    const LaneReads<S::kRowBytes> reads(stream.ring, lane);
    // A stage has arrived for all; the previous one has been read by all, and is refilled.
    unsigned slot = 0;
    const auto arrived = [&] {
        wait_for_copies<S::kStages - 2>();
        __syncthreads();
        stream.fetch(a);
    };
    const auto taken = [&] {
        slot = slot + S::kStageBytes == S::kRing ? 0 : slot + S::kStageBytes;
    };
    const auto groups_of = [&](int part) {
        const bool mine = sees_any && part >= t.begin && part < t.end;
        return mine ? (t.part_end(a, part) - part * kStepKeys + kSubKeys - 1) / kSubKeys : 0;
    };
    float base[2] = {-INFINITY, -INFINITY};
    {
        std::uint32_t q[D / 8];
        load_row<T, D>(q,
                       static_cast<const T*>(a.q) + t.at(a, some ? min(g, t.rows - 1) : 0, head, D),
                       c, g < t.rows);
        KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            sees[e] = 2 * c + e < t.rows ? t.sees(a, 2 * c + e) : KeyRange{0, 0};
        }
#pragma unroll 1
        for (int part = begin; part < end; ++part) {
            const int subs = groups_of(part);
            std::uint32_t low[kSubs] = {}, high[kSubs] = {};
            float top[kSubs][2], weight[kSubs][2] = {};
            arrived();
#pragma unroll
            for (int sub = 0; sub < kSubs; ++sub) {
                top[sub][0] = top[sub][1] = -INFINITY;
                if (sub >= subs) continue;
                const unsigned at = slot + sub * kSubKeys * S::kRowBytes;
                std::uint32_t k[2][D / 8];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int i = 0; i < D / 32; ++i) {
                        load16(k[h] + 4 * i,
                               reads.keys[i % 2] + at + h * 2 * S::kRowBytes + i / 2 * 128);
                    }
                }
                const Scores scores = score<T, D>(k, q);
                const Weights weights = weigh<T>(
                    scores, part * kStepKeys + sub * kSubKeys + key_of_row(g), sees, a.scale,
                    [&](int e, float most) {
                        top[sub][e] = most;
                        return base_of(most);
                    },
                    [&](int e, float sum) { weight[sub][e] = sum; });
                low[sub] = weights.b0;
                high[sub] = weights.b1;
            }
            taken();
            if (subs == 0) continue;
            float most[2], total[2], factor[kSubs][2];
            merge_subs(top, weight, most, total, factor);
            base[0] = fmaxf(base[0], most[0]);
            base[1] = fmaxf(base[1], most[1]);
            Held& to = held[part];
            to.low[lane] = uint4{low[0], low[1], low[2], low[3]};
            to.high[lane] = uint4{high[0], high[1], high[2], high[3]};
            if (g == 0) {
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub) {
                    to.factor[c][sub] = float2{factor[sub][0], factor[sub][1]};
                }
                to.sums[c] = float4{most[0], total[0], most[1], total[1]};
            }
        }
    }
    base[0] = base_of(base[0]), base[1] = base_of(base[1]);
    __syncwarp();

    // combine(): the parts of every fourth place are added, then the four sums.
    const bool alone = sees_any && t.parts() == 1;
    float sums[D / 16][4] = {}, first[D / 16][4], third[D / 16][4];
    float weights[2] = {}, first_weights[2], third_weights[2];
    PartOrder order(begin, end);
#pragma unroll 1
    for (int turn = 0; turn < 4; ++turn) {
#pragma unroll 1
        for (; order.part < end && order.part % 4 == turn; order.next()) {
            const int part = order.part, subs = groups_of(part);
            arrived();
            if (subs > 0) {
                const Held& from = held[part];
                const uint4 low4 = from.low[lane], high4 = from.high[lane];
                const float4 of = from.sums[c];
                const std::uint32_t low[kSubs] = {low4.x, low4.y, low4.z, low4.w};
                const std::uint32_t high[kSubs] = {high4.x, high4.y, high4.z, high4.w};
                float2 factor[kSubs];
#pragma unroll
                for (int sub = 0; sub < kSubs; ++sub) factor[sub] = from.factor[c][sub];
                const float w0 = alone ? 1.0f : exp2_fast(of.x - base[0]);
                const float w1 = alone ? 1.0f : exp2_fast(of.z - base[1]);
                weights[0] = fmaf(w0, of.y, weights[0]);
                weights[1] = fmaf(w1, of.w, weights[1]);
#pragma unroll
                for (int w = 0; w < D / 16; ++w) {
                    float value[4] = {};  // head_dim 16 w + g: rows 2 c, 2 c + 1; and of g + 8
#pragma unroll
                    for (int sub = 0; sub < kSubs; ++sub) {
                        std::uint32_t v[4];
                        load_transposed(v, reads.values + slot + sub * kSubKeys * S::kRowBytes +
                                               (2 * w ^ reads.swizzle) * 16);
                        float out[4] = {0, 0, 0, 0};
                        mma<T>(out, v, low[sub], high[sub]);
                        if (sub >= subs) continue;  // no branch: the product is computed anyway
                        value[0] = fmaf(factor[sub].x, out[0], value[0]);
                        value[1] = fmaf(factor[sub].y, out[1], value[1]);
                        value[2] = fmaf(factor[sub].x, out[2], value[2]);
                        value[3] = fmaf(factor[sub].y, out[3], value[3]);
                    }
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        sums[w][e] = alone ? value[e] : fmaf(e % 2 ? w1 : w0, value[e], sums[w][e]);
                    }
                }
            }
            taken();
        }
        if (alone || turn == 3) continue;
        const auto put_away = [&](float& one, float& three, float& sum) {
            if (turn == 0) one = sum;
            if (turn == 1) one += sum;
            if (turn == 2) three = sum;
            sum = 0;
        };
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) put_away(first[w][e], third[w][e], sums[w][e]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) put_away(first_weights[e], third_weights[e], weights[e]);
    }
    if (!alone) {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[w][e] = first[w][e] + (third[w][e] + sums[w][e]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            weights[e] = first_weights[e] + (third_weights[e] + weights[e]);
        }
    }
    wait_for_copies<0>();
    __syncthreads();  // all have read the ring
    if (!sees_any) return;
    T* const rows = reinterpret_cast<T*>(memory) + warp * (kTileRows * S::kOutRow);
#pragma unroll
    for (int w = 0; w < D / 16; ++w) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            rows[(2 * c + e % 2) * S::kOutRow + 16 * w + e / 2 * 8 + g] =
                from_f32<T>(normalised(sums[w][e], weights[e % 2]));
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kTileRows * S::kChunks; i += 32) {
        const int row = i / S::kChunks, chunk = i % S::kChunks * 8;
        if (row >= t.rows) continue;
        *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + t.at(a, row, head, D) + chunk) =
            *reinterpret_cast<const uint4*>(rows + row * S::kOutRow + chunk);
    }
}

template <typename T, int D>
bool start(const Context& ctx, int sequences, const Args& args) {
    constexpr auto kKernel = several_kernel<T, D>;
    static const std::size_t room = [] {
        const std::size_t most = this_gpu().shared_per_block - 1024;
        allow_shared(kKernel, most);
        return most;
    }();
    const auto bytes = [&](int warps) {
        return SeveralShape<D>::kRing +
               static_cast<std::size_t>(warps * args.max_parts) * sizeof(Held);
    };
    // As many tiles per block as there is room for their parts' data.
    int blocks = (args.row_tiles + kSeveralWarps - 1) / kSeveralWarps, warps = 0;
    for (;; ++blocks) {
        warps = (args.row_tiles + blocks - 1) / blocks;
        if (bytes(warps) <= room) break;
        if (warps == 1) return false;
    }
    launch(ctx,
           dim3(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(sequences),
                static_cast<unsigned>(blocks)),
           dim3(static_cast<unsigned>(32 * warps)), bytes(warps), kKernel, args);
    return true;
}

}  // namespace

bool decode_several_on_tensor_cores(const Context& ctx, DType dtype, int, std::int64_t tiles,
                                    const Args& args) {
    if (args.has_views() || args.max_keys > kShortKeys) return false;
    const int sequences = static_cast<int>(tiles / args.row_tiles);
    const bool wide = args.head_dim == 128;
    if (!wide && args.head_dim != 64) return false;
    if (dtype == DType::bf16) {
        return (wide ? start<bf16, 128> : start<bf16, 64>)(ctx, sequences, args);
    }
    return dtype == DType::f16 &&
           (wide ? start<__half, 128> : start<__half, 64>)(ctx, sequences, args);
}

}  // namespace mr::cuda::attn
