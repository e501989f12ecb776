// Attention without tensor cores: any head_dim that is a multiple of 8, any mix of types, any
// device. One kernel for both forms: kSplit writes a partial result for every part of the keys, as
// decode does; otherwise a block takes its rows along all their keys.
#include "ops/attention/paged/common.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kThreads = kDecodeThreads;

// N neighbouring elements, aligned to their size, as f32.
template <int N>
__device__ __forceinline__ void load(float (&to)[N], const float* from) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 x = *reinterpret_cast<const float4*>(from + i);
        to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
    }
}
template <int N, typename T>
__device__ __forceinline__ void load(float (&to)[N], const T* from) {
    static_assert(sizeof(T) == 2 && (N == 4 || N == 8));
    struct alignas(2 * N) Words {
        T x[N];
    };
    const Words words = *reinterpret_cast<const Words*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = to_f32(words.x[i]);
}

template <typename T, typename C, bool kSplit>
__global__ void __launch_bounds__(kThreads) plain_kernel(const __grid_constant__ Args a) {
    __shared__ __align__(16) float q[kTileRows][kMaxDim];
    __shared__ float weights[kTileRows][kStepKeys];  // first the scores
    __shared__ float top[kTileRows], sum[kTileRows], factor[kTileRows];
    __shared__ __align__(16) float merge[4 * (kMaxDim + 2)];
    __shared__ bool last;

    const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
    const int dim = a.head_dim;
    const int kv_head = static_cast<int>(blockIdx.x), z = static_cast<int>(blockIdx.z);
    const int s = static_cast<int>(blockIdx.y) / a.row_tiles;
    const int tile = static_cast<int>(blockIdx.y) % a.row_tiles;
    wait_for_previous();
    let_next_start();
    const StageClock clock(a.stamp);
    // Without a split the last rows, which see most, go first.
    Tile t = rows_at(a, s, kSplit ? tile : a.row_tiles - 1 - tile, kv_head);
    if (t.rows <= 0) return;
    t.see(a, last_position(a, t), s);
    if (t.parts() == 0) {
        for (int i = tid; i < t.rows * dim && z == 0; i += kThreads) {
            store_normalised<T>(a, t.at(a, i / dim, kv_head, dim) + i % dim, 0, 0);
        }
        return;
    }
    const int parts = kSplit ? t.parts() : 1;
    if (z >= parts) return;

    // For the values: thread (member, column) adds the keys member, member + members, ... of four
    // columns of head_dim.
    const int columns = dim / 4, members = kThreads / columns;
    const int member = tid / columns, column = tid % columns * 4;

    int asked = 0;  // contents of q: 1 + whether it is for the sinks
    for (int i = z; i < parts; i += static_cast<int>(gridDim.z)) {
        const int part = t.part(i);
        const int last_end = t.begin < t.end ? t.range.hi : t.sinks_end;
        const int end = kSplit ? t.part_end(a, part) : last_end;
        // The first step from this one on with a visible key.
        const auto step_from = [&](int key) {
            return key < t.ahead * kStepKeys ? key : max(key, t.range.lo / kStepKeys * kStepKeys);
        };
        __syncthreads();  // the previous part has been read
        if (tid < kTileRows) top[tid] = -INFINITY, sum[tid] = 0;
        float acc[kTileRows][4] = {};

        for (int from = step_from(kSplit ? part_begin(part, a.shorts) : 0); from < end;
             from = step_from(from + kStepKeys)) {
            __syncthreads();  // the previous step has been read
            const bool sinks = from < t.ahead * kStepKeys;
            const KeyRange seen =
                sinks ? KeyRange{0, t.sinks_end} : KeyRange{t.range.lo, min(end, t.range.hi)};
            const auto page_of = [&](int key) {
                return table_of(a, s, sinks)[t.entry(a, from / kStepKeys, key)];
            };
            if (asked != 1 + sinks) {
                asked = 1 + sinks;
                for (int j = tid; j < t.rows * dim; j += kThreads) {
                    const int r = j / dim, d = j % dim;
                    q[r][d] = to_f32(asking<T>(a, sinks)[t.at(a, r, kv_head, dim) + d]);
                }
                __syncthreads();
            }
            // Scores: eight lanes share a key.
            for (int k = warp * 16 + lane / 8; k < warp * 16 + 16; k += 4) {
                const int key = from + k;
                const bool on = seen.holds(key);
                float dot[kTileRows] = {};
                if (on) {
                    const C* at = cache_at<C>(a, a.keys, page_of(key), kv_head, key, dim);
                    for (int d = lane % 8 * 8; d < dim; d += 64) {
                        float x[8];
                        load<8>(x, at + d);
#pragma unroll
                        for (int r = 0; r < kTileRows; ++r) {
                            if (r >= t.rows) break;
#pragma unroll
                            for (int e = 0; e < 8; ++e) dot[r] = fmaf(q[r][d + e], x[e], dot[r]);
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < kTileRows; ++r) {
                    if (r >= t.rows) break;
#pragma unroll
                    for (int far = 1; far < 8; far *= 2) {
                        dot[r] += __shfl_xor_sync(~0u, dot[r], far);
                    }
                    if (lane % 8 != 0) continue;
                    weights[r][k] = on && t.sees(a, r, from / kStepKeys).holds(key)
                                        ? dot[r] * a.scale
                                        : -INFINITY;
                }
            }
            __syncthreads();
            // Weights: a warp has two rows, a lane two keys.
            for (int r = warp; r < t.rows; r += 4) {
                const float s0 = weights[r][lane], s1 = weights[r][lane + 32];
                const float most = fmaxf(top[r], warp_max(fmaxf(s0, s1)));
                const float base = base_of(most);
                const float p0 = exp2_fast(s0 - base), p1 = exp2_fast(s1 - base);
                const float total = warp_sum(p0 + p1);
                weights[r][lane] = p0;
                weights[r][lane + 32] = p1;
                __syncwarp();  // all have read top[r]
                if (lane == 0) {
                    factor[r] = exp2_fast(top[r] - base);
                    sum[r] = fmaf(sum[r], factor[r], total);
                    top[r] = most;
                }
            }
            __syncthreads();
            if (member < members) {
#pragma unroll
                for (int r = 0; r < kTileRows; ++r) {
                    if (r >= t.rows) break;
#pragma unroll
                    for (int e = 0; e < 4; ++e) acc[r][e] *= factor[r];
                }
#pragma unroll 4
                for (int k = member; k < kStepKeys; k += members) {
                    const int key = from + k;
                    if (!seen.holds(key)) continue;
                    float x[4];
                    load<4>(x, cache_at<C>(a, a.values, page_of(key), kv_head, key, dim) + column);
#pragma unroll
                    for (int r = 0; r < kTileRows; ++r) {
                        if (r >= t.rows) break;
                        const float p = weights[r][k];
                        // A key that this row must not see cannot affect it, not even as 0 * NaN.
                        if (p == 0) continue;
#pragma unroll
                        for (int e = 0; e < 4; ++e) acc[r][e] = fmaf(p, x[e], acc[r][e]);
                    }
                }
            }
        }

        // The members' sums, row by row.
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) {
            if (r >= t.rows) break;
            __syncthreads();
            if (member < members) {
                *reinterpret_cast<float4*>(merge + 4 * tid) = {acc[r][0], acc[r][1], acc[r][2],
                                                               acc[r][3]};
            }
            __syncthreads();
            for (int d = tid; d < dim; d += kThreads) {
                float value = 0;
                for (int m = 0; m < members; ++m) value += merge[m * dim + d];
                if (parts == 1) {
                    store_normalised<T>(a, t.at(a, r, kv_head, dim) + d, value, sum[r]);
                    continue;
                }
                const std::int64_t at =
                    (t.slot + static_cast<std::int64_t>(r) * a.kv_heads) * a.max_parts +
                    t.place(part);
                a.sums[at * dim + d] = value;
                if (d == 0) a.tops[at] = {top[r], sum[r]};
            }
        }
    }
    if constexpr (kSplit) {
        if (parts > 1)
            finish<T>(a, t, kv_head, dim, static_cast<int>(gridDim.z), merge, &last, BlockTeam{});
    }
}

template <bool kSplit>
void launch_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args) {
    with_float_type(q, [&](auto of_q) {
        with_float_type(cache, [&](auto of_cache) {
            launch(ctx, grid, kThreads, 0, plain_kernel<decltype(of_q), decltype(of_cache), kSplit>,
                   args);
        });
    });
}

}  // namespace

void decode_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args) {
    launch_plain<true>(ctx, q, cache, grid, args);
}
void prefill_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args) {
    launch_plain<false>(ctx, q, cache, grid, args);
}

}  // namespace mr::cuda::attn
