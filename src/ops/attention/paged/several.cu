// Decode attention for sequences with several tiles of rows each: blocks of tokens that are filled
// in, short prompts (sm_80 and up). It has the bits of decode.cuh with another distribution of the
// work.
//
// The other kernels read the keys once for every tile of 8 rows. Here a block has up to 8 tiles of
// one sequence and head, a warp each, and brings every key and value to shared memory once for all
// of them, a part of 64 keys at a time. A warp does the work of a team's four warps, as in many.cu,
// and has all parts of its tile: it combines them itself, and a lane reads back what it wrote.
#include "core/cuda/copy.cuh"
#include "core/cuda/device.h"
#include "ops/attention/paged/warp_part.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kSeveralWarps = 8;
constexpr int kSeveralPages = kShortKeys / kPageKeys;

template <int D>
struct SeveralShape {
    static constexpr int kRowBytes = 2 * D, kChunks = D / 8;
    static constexpr int kStages = 3;  // half a part each: its keys, or its values
    static constexpr int kStageBytes = kStepKeys * kRowBytes;
    static constexpr int kBytes = kStages * kStageBytes;
};

// The copies of a block: keys and values of all parts that any of its tiles sees.
template <typename T, int D>
struct PartStream {
    using S = SeveralShape<D>;
    unsigned ring;
    const std::int32_t* pages;  // of the visible parts, in shared memory
    int head, begin, end;       // parts
    KeyRange keys;
    int next = 0;  // stage: even ones are keys, odd ones values

    // It commits a group of copies in any case.
    __device__ __forceinline__ void fetch(const Args& a) {
        const int part = begin + next / 2;
        if (part < end) {
            const bool value = next % 2;
            const int threads = static_cast<int>(blockDim.x);
            const unsigned to = ring + next % S::kStages * S::kStageBytes;
#pragma unroll 4
            for (int i = static_cast<int>(threadIdx.x); i < kStepKeys * S::kChunks; i += threads) {
                const int row = i / S::kChunks, chunk = i % S::kChunks;
                const int key = part * kStepKeys + row, in = row % kSubKeys;
                const T* at =
                    cache_at<T>(a, value ? a.values : a.keys,
                                pages[(key - begin * kStepKeys) / kPageKeys], head, key, D);
                copy16(to + row * S::kRowBytes + swizzled_chunk(value, chunk, in) * 16,
                       at + chunk * 8, keys.holds(key));
            }
        }
        ++next;
        commit_copies();
    }
};

template <typename T, int D>
__global__ void __maxnreg__(144) several_kernel(const __grid_constant__ Args a) {
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
    PartStream<T, D> stream;
    stream.begin = bounds[0][0], stream.end = bounds[1][0];
    stream.keys = {bounds[2][0], bounds[3][0]};
    for (int w = 1; w < warps; ++w) {
        stream.begin = min(stream.begin, bounds[0][w]);
        stream.end = max(stream.end, bounds[1][w]);
        stream.keys.lo = min(stream.keys.lo, bounds[2][w]);
        stream.keys.hi = max(stream.keys.hi, bounds[3][w]);
    }
    if (stream.end == 0) return;
    const std::int32_t* table = a.pages + static_cast<std::int64_t>(sequence) * a.max_pages;
    constexpr int kPagesOfPart = kStepKeys / kPageKeys;
    const int first_page = stream.begin * kPagesOfPart;
    for (int i = static_cast<int>(threadIdx.x); i < (stream.end - stream.begin) * kPagesOfPart;
         i += static_cast<int>(blockDim.x)) {
        // Behind the last key: any page, of which nothing is read.
        const int page = min(first_page + i, (stream.keys.hi - 1) / kPageKeys);
        pages[i] = table[ops::table_entry(page, a.max_pages)];
    }
    __syncthreads();
    stream.ring = shared_address(memory);
    stream.pages = pages;
    stream.head = head;
#pragma unroll 1
    for (int i = 0; i + 1 < S::kStages; ++i) stream.fetch(a);

    std::uint32_t q[D / 8];
    load_row<T, D>(q, static_cast<const T*>(a.q) + t.at(a, some ? min(g, t.rows - 1) : 0, head, D),
                   c, g < t.rows);

    const LaneReads<S::kRowBytes> reads(stream.ring, lane);

    // A stage has arrived for all; the one before it has been read by all, and is filled again.
    unsigned slot = 0;
    const auto arrived = [&] {
        wait_for_copies<S::kStages - 2>();
        __syncthreads();
        stream.fetch(a);
    };
    const auto taken = [&] {
        slot = slot + S::kStageBytes == S::kBytes ? 0 : slot + S::kStageBytes;
    };
    const std::int64_t place = t.slot + head;
    float tallest[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
    for (int part = stream.begin; part < stream.end; ++part) {
        const bool mine = sees_any && part >= t.begin && part < t.end;
        const int from = part * kStepKeys;
        const int subs = mine ? (t.part_end(a, part) - from + kSubKeys - 1) / kSubKeys : 0;
        std::uint32_t low[kSubs] = {}, high[kSubs] = {};
        float top[kSubs][2], weight[kSubs][2] = {};
        arrived();
        {
            KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                sees[e] = 2 * c + e < t.rows ? t.sees(a, 2 * c + e, part) : KeyRange{0, 0};
            }
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
                    scores, from + sub * kSubKeys + key_of_row(g), sees, a.scale,
                    [&](int e, float most) {
                        top[sub][e] = most;
                        return base_of(most);
                    },
                    [&](int e, float sum) { weight[sub][e] = sum; });
                low[sub] = weights.b0;
                high[sub] = weights.b1;
            }
        }
        taken();
        float most[2], total[2], factor[kSubs][2];
        merge_subs(top, weight, most, total, factor);
        tallest[0] = fmaxf(tallest[0], most[0]);
        tallest[1] = fmaxf(tallest[1], most[1]);
        arrived();
        float value[D / 16][4];  // head_dim 16 w + g: rows 2 c, 2 c + 1; and the same of g + 8
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) value[w][e] = 0;
        }
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            if (sub >= subs) continue;
            const unsigned at = reads.values + slot + sub * kSubKeys * S::kRowBytes;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                std::uint32_t v[4];
                load_transposed(v, at + (2 * w ^ reads.swizzle) * 16);
                float out[4] = {0, 0, 0, 0};
                mma<T>(out, v, low[sub], high[sub]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    value[w][e] = fmaf(factor[sub][e % 2], out[e], value[w][e]);
                }
            }
        }
        taken();
        if (!mine) continue;
        const bool alone = t.parts() == 1;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = 2 * c + e;
            if (row >= t.rows) continue;
            if (alone) {
                const std::int64_t at = t.at(a, row, head, D) + g;
#pragma unroll
                for (int w = 0; w < D / 16; ++w) {
                    store_normalised<T>(a, at + 16 * w, value[w][e], total[e]);
                    store_normalised<T>(a, at + 16 * w + 8, value[w][2 + e], total[e]);
                }
                continue;
            }
            const std::int64_t at =
                (place + static_cast<std::int64_t>(row) * a.kv_heads) * a.max_parts + part;
            float* to = a.sums + at * D + g;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                __stcg(to + 16 * w, value[w][e]);
                __stcg(to + 16 * w + 8, value[w][2 + e]);
            }
            if (g == 0) __stcg(a.tops + at, float2{most[e], total[e]});
        }
    }
    wait_for_copies<0>();
    if (!sees_any || t.parts() == 1) return;

    // combine(): the parts of every fourth place are added up, then the four sums.
    __syncwarp();
    constexpr int kAtOnce = D / 16 < 4 ? D / 16 : 4;  // tiles of 16 columns
#pragma unroll 1
    for (int e = 0; e < 2; ++e) {
        const int row = 2 * c + e;
        if (row >= t.rows) continue;
        const float base = base_of(e ? tallest[1] : tallest[0]);
        const std::int64_t parts =
            (place + static_cast<std::int64_t>(row) * a.kv_heads) * a.max_parts;
#pragma unroll 1
        for (int w0 = 0; w0 < D / 16; w0 += kAtOnce) {
            float sums[4][2 * kAtOnce] = {}, weights[4] = {};
#pragma unroll 1
            for (int p0 = t.begin / 4 * 4; p0 < t.end; p0 += 4) {
                float2 of[4];
                float x[4][2 * kAtOnce];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int p = p0 + i;
                    const bool on = p >= t.begin && p < t.end;
                    of[i] = on ? __ldcg(a.tops + parts + p) : float2{-INFINITY, 0};
                    const float* from = a.sums + (parts + p) * D + 16 * w0 + g;
#pragma unroll
                    for (int j = 0; j < 2 * kAtOnce; ++j) x[i][j] = on ? __ldcg(from + 8 * j) : 0;
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float w = exp2_fast(of[i].x - base);
                    weights[i] = fmaf(w, of[i].y, weights[i]);
#pragma unroll
                    for (int j = 0; j < 2 * kAtOnce; ++j) {
                        sums[i][j] = fmaf(w, x[i][j], sums[i][j]);
                    }
                }
            }
            const float weight = (weights[0] + weights[1]) + (weights[2] + weights[3]);
            const std::int64_t at = t.at(a, row, head, D) + 16 * w0 + g;
#pragma unroll
            for (int j = 0; j < 2 * kAtOnce; ++j) {
                store_normalised<T>(a, at + 8 * j,
                                    (sums[0][j] + sums[1][j]) + (sums[2][j] + sums[3][j]), weight);
            }
        }
    }
}

template <typename T, int D>
bool start(const Context& ctx, int sequences, const Args& args) {
    constexpr auto kKernel = several_kernel<T, D>;
    static const bool fits = [] {
        if (this_gpu().shared_per_block < SeveralShape<D>::kBytes + 2048) return false;
        allow_shared(kKernel, SeveralShape<D>::kBytes);
        return true;
    }();
    if (!fits) return false;
    const int blocks = (args.row_tiles + kSeveralWarps - 1) / kSeveralWarps;
    const int warps = (args.row_tiles + blocks - 1) / blocks;
    launch(ctx,
           dim3(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(sequences),
                static_cast<unsigned>(blocks)),
           dim3(static_cast<unsigned>(32 * warps)), SeveralShape<D>::kBytes, kKernel, args);
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
