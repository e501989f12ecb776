// The forward without tensor cores: f32 everywhere, and every type before sm_80. A block keeps 32
// queries and their sums, in f32; tiles of 16 or 32 keys, then of their values, pass through one
// buffer in shared memory, so that 64 KB suffice for head_dim 256.
#include "ops/attention/flash/dispatch.cuh"

namespace mr::cuda::flash {
namespace {

constexpr int kRows = 32, kThreads = 128;

// D: head_dim padded to a multiple of 64 with zeros. Rows in shared memory are 4 floats longer.
template <int D>
struct Shared {
    static constexpr int kStride = D + 4;
    static constexpr int kKeys = D <= 128 ? 32 : 16;
    float q[kRows][kStride];
    float kv[kKeys][kStride];
    float weights[kRows][kKeys + 1];
};

template <typename T, int D, int kCount>
__device__ __forceinline__ void load_rows(float (&to)[kCount][D + 4], const View& view, int token,
                                          int head, int head_dim, int count) {
    for (int i = static_cast<int>(threadIdx.x); i < kCount * D; i += kThreads) {
        const int row = i / D, d = i % D;
        to[row][d] = row < count && d < head_dim
                         ? to_f32(view.row<const T>(token + row, head, head_dim)[d])
                         : 0.0f;
    }
}

// Thread 16 y + x has the scores of rows 4 y .. 4 y + 3 and keys x (and x + 16), and of the sums
// the columns 4 x .. 4 x + 3 of every 64. The 16 threads of a row are half a warp.
template <typename T, int D>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ Problem p, Stamp* stamp) {
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int kKeys = Shared<D>::kKeys, kEach = kKeys / 16;
    auto& shared = *reinterpret_cast<Shared<D>*>(memory);
    const int head = static_cast<int>(blockIdx.x), kv_head = head / p.group;
    const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
    const float scale = p.scale * kLog2e;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const Sequence s = p.sequence(static_cast<int>(blockIdx.y));
    // blockIdx.z counts from the last rows, which see most keys, where there are not too many.
    for (int z = static_cast<int>(blockIdx.z);; z += static_cast<int>(gridDim.z)) {
        const int row_tiles = (s.queries + kRows - 1) / kRows;
        if (z >= row_tiles) return;
        const int row0 = (row_tiles - 1 - z) * kRows, rows = min(kRows, s.queries - row0);
        const KeyTiles<kKeys> tiles(p.mask, s.position(row0), s.position(row0 + rows - 1), s.keys);
        float out[4][D / 64][4] = {};
        float top[4], weight[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            top[r] = -INFINITY;
            weight[r] = 0;
        }
        load_rows<T, D>(shared.q, p.q, s.q + row0, head, p.head_dim, rows);
        for (int t = 0; t < tiles.count(); ++t) {
            const int n = tiles.at(t);
            load_rows<T, D>(shared.kv, p.k, s.k + n, kv_head, p.head_dim, s.keys - n);
            __syncthreads();
            float score[4][kEach] = {};
            for (int d = 0; d < D; d += 4) {
                float4 k[kEach];
#pragma unroll
                for (int e = 0; e < kEach; ++e) {
                    k[e] = *reinterpret_cast<const float4*>(&shared.kv[x + 16 * e][d]);
                }
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float4 q = *reinterpret_cast<const float4*>(&shared.q[4 * y + r][d]);
#pragma unroll
                    for (int e = 0; e < kEach; ++e) {
                        score[r][e] += q.x * k[e].x + q.y * k[e].y + q.z * k[e].z + q.w * k[e].w;
                    }
                }
            }
            __syncthreads();  // the keys have been read
            load_rows<T, D>(shared.kv, p.v, s.k + n, kv_head, p.head_dim, s.keys - n);
            const bool cut = tiles.cut(n);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int position = s.position(row0 + 4 * y + r);
                float most = top[r];
#pragma unroll
                for (int e = 0; e < kEach; ++e) {
                    const int key = n + x + 16 * e;
                    const bool seen = !cut || p.mask.sees(position, key, s.keys);
                    score[r][e] = seen ? score[r][e] * scale : -INFINITY;
                    most = fmaxf(most, score[r][e]);
                }
#pragma unroll
                for (int o = 8; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
                const float base = most == -INFINITY ? 0.0f : most;
                const float factor = exp2f(top[r] - base);
                top[r] = most;
                float sum = 0;
#pragma unroll
                for (int e = 0; e < kEach; ++e) {
                    const float w = exp2f(score[r][e] - base);
                    shared.weights[4 * y + r][x + 16 * e] = w;
                    sum += w;
                }
                weight[r] = weight[r] * factor + sum;
#pragma unroll
                for (int i = 0; i < D / 64; ++i) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) out[r][i][e] *= factor;
                }
            }
            __syncthreads();
            for (int j = 0; j < kKeys; ++j) {
#pragma unroll
                for (int i = 0; i < D / 64; ++i) {
                    const float4 v =
                        *reinterpret_cast<const float4*>(&shared.kv[j][64 * i + 4 * x]);
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        const float w = shared.weights[4 * y + r][j];
                        out[r][i][0] += w * v.x;
                        out[r][i][1] += w * v.y;
                        out[r][i][2] += w * v.z;
                        out[r][i][3] += w * v.w;
                    }
                }
            }
            __syncthreads();  // this tile has been read
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float sum = weight[r];
#pragma unroll
            for (int o = 8; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
            const int row = row0 + 4 * y + r;
            if (row >= s.queries) continue;
            const float factor = sum > 0 ? 1.0f / sum : 0.0f;
            T* to = p.out.row<T>(s.q + row, head, p.head_dim);
#pragma unroll
            for (int i = 0; i < D / 64; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int d = 64 * i + 4 * x + e;
                    if (d < p.head_dim) to[d] = from_f32<T>(out[r][i][e] * factor);
                }
            }
            if (x == 0) {
                p.lse[static_cast<std::int64_t>(head) * p.tokens_q + s.q + row] =
                    sum > 0 ? (top[r] + log2f(sum)) * kLn2 : -INFINITY;
            }
        }
        __syncthreads();  // before the next rows overwrite these
    }
}

template <typename T, int D>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp) {
    const int row_tiles = (p.max_queries + kRows - 1) / kRows;
    const dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences),
                    static_cast<unsigned>(std::min(row_tiles, 65535)));
    allow_shared(forward_kernel<T, D>, sizeof(Shared<D>));
    launch(ctx, grid, kThreads, sizeof(Shared<D>), forward_kernel<T, D>, p, stamp);
}

}  // namespace

void forward_plain(const Context& ctx, const Problem& p, Stamp* stamp) {
    with_float_type(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (p.head_dim <= 64) return launch_forward<T, 64>(ctx, p, stamp);
        if (p.head_dim <= 128) return launch_forward<T, 128>(ctx, p, stamp);
        launch_forward<T, 256>(ctx, p, stamp);
    });
}

}  // namespace mr::cuda::flash
