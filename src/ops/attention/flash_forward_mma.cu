// The forward for sm_80 and up, after FlashAttention-2: a block of rows of one head keeps its
// queries in shared memory and its sums in registers, and tiles of keys and values stream past with
// a running softmax. K of the next tile is copied while this tile's weights meet V, and V while the
// scores are computed. attention_prefill.cu is the same for the paged cache.
#include "core/cuda/fast_math.cuh"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/flash_dispatch.cuh"

namespace mr::cuda::flash {
namespace {

using attn::load_matrices;
using attn::load_transposed;

constexpr int kKeys = 64;  // of a tile

// kWarps warps with kBlocks m16 blocks of rows each.
template <int D>
struct Shape {
    static constexpr int kBlocks = D <= 128 ? 2 : 1;
    static constexpr int kWarps = D <= 128 ? 4 : 8;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kRows = 16 * kBlocks * kWarps;
    static constexpr int kMinBlocks = D <= 128 ? 2 : 1;
    // An odd number of 16-byte pieces: the eight rows of a matrix lie in different banks.
    static constexpr int kStride = D + 8;
    static constexpr int kSharedBytes = (kRows + 2 * kKeys) * kStride * 2;
};

template <typename T, int D>
__global__ void __launch_bounds__(Shape<D>::kThreads, Shape<D>::kMinBlocks)
    forward_kernel(const __grid_constant__ Problem p, Stamp* stamp) {
    using S = Shape<D>;
    constexpr int kPieces = D / 8;  // of 16 bytes, in a row
    constexpr int kStrideBytes = S::kStride * 2;
    constexpr int kWarpRows = 16 * S::kBlocks;
    extern __shared__ __align__(16) unsigned char shared[];
    const unsigned shared_q = shared_address(shared);
    const unsigned shared_k = shared_q + S::kRows * kStrideBytes;
    const unsigned shared_v = shared_k + kKeys * kStrideBytes;

    const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
    const int head = static_cast<int>(blockIdx.x), kv_head = head / p.group;
    const float scale = p.scale * kLog2e;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const Sequence s = p.sequence(static_cast<int>(blockIdx.y));
    // The last rows of a causal sequence see most keys: they go first.
    const int row0 = static_cast<int>(gridDim.z - 1 - blockIdx.z) * S::kRows;
    const int rows = min(S::kRows, s.queries - row0);
    if (rows <= 0) return;
    const KeyTiles<kKeys> tiles(p.mask, s.position(row0), s.position(row0 + rows - 1), s.keys);

    // [rows, head_dim] of one head; what is not there is zeros.
    const auto load = [&](unsigned to, const View& view, int token, int of_head, int count,
                          int most) {
        for (int piece = tid; piece < most * kPieces; piece += S::kThreads) {
            const int row = piece / kPieces, d = piece % kPieces * 8;
            const bool on = row < count && d < p.head_dim;
            copy16(to + row * kStrideBytes + 2 * d,
                   view.row<const T>(token + (on ? row : 0), of_head, p.head_dim) + (on ? d : 0),
                   on);
        }
        commit_copies();
    };
    const auto load_tile = [&](unsigned to, const View& view, int n) {
        load(to, view, s.k + n, kv_head, s.keys - n, kKeys);
    };
    load(shared_q, p.q, s.q + row0, head, rows, S::kRows);
    const int warp_row = warp * kWarpRows;
    // Where this lane's row of the four matrices of a load lies.
    const unsigned q_of_lane = shared_q + (warp_row + lane % 16) * kStrideBytes + lane / 16 * 16;
    const unsigned k_of_lane =
        shared_k + (lane % 8 + lane / 16 * 8) * kStrideBytes + lane / 8 % 2 * 16;
    const unsigned v_of_lane = shared_v + lane % 16 * kStrideBytes + lane / 16 * 16;

    float out[S::kBlocks][D / 8][4] = {};
    float top[S::kBlocks][2], weight[S::kBlocks][2];
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
        top[b][0] = top[b][1] = -INFINITY;
        weight[b][0] = weight[b][1] = 0;
    }
    if (tiles.count() > 0) load_tile(shared_k, p.k, tiles.at(0));
    for (int t = 0; t < tiles.count(); ++t) {
        const int n = tiles.at(t);
        wait_for_copies();
        __syncthreads();  // K of this tile is there, and nobody reads V of the last any more
        load_tile(shared_v, p.v, n);

        std::uint32_t w[S::kBlocks][kKeys / 16][4];  // the weights, as the second product's A
        float x[S::kBlocks][kKeys / 8][4] = {};      // scores, then weights
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            std::uint32_t q[S::kBlocks][4];
#pragma unroll
            for (int b = 0; b < S::kBlocks; ++b) {
                load_matrices(q[b], q_of_lane + 16 * b * kStrideBytes + 2 * d);
            }
#pragma unroll
            for (int k = 0; k < kKeys; k += 16) {
                std::uint32_t m[4];
                load_matrices(m, k_of_lane + k * kStrideBytes + 2 * d);
#pragma unroll
                for (int b = 0; b < S::kBlocks; ++b) {
                    mma<T>(x[b][k / 8], q[b], m[0], m[1]);
                    mma<T>(x[b][k / 8 + 1], q[b], m[2], m[3]);
                }
            }
        }
        if (tiles.cut(n)) {
            const int first = s.position(row0 + warp_row + lane / 4), column = n + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < 2 * S::kBlocks; ++i) {
                const int position = first + 8 * i, hi = p.mask.hi(position, s.keys) - column;
                const int lo = p.mask.lo(position) - column, sinks = p.mask.sinks - column;
#pragma unroll
                for (int k = 0; k < kKeys / 4; ++k) {
                    const int key = k / 2 * 8 + k % 2;
                    if (key >= hi || (key < lo && key >= sinks)) {
                        x[i / 2][k / 2][i % 2 * 2 + k % 2] = -INFINITY;
                    }
                }
            }
        }
        // The running softmax. Four lanes share a row; each keeps the sum of its own weights.
#pragma unroll
        for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float most = -INFINITY;
#pragma unroll
                for (int k = 0; k < kKeys / 8; ++k) {
                    most = fmaxf(most, fmaxf(x[b][k][2 * h], x[b][k][2 * h + 1]));
                }
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                most = fmaxf(most * scale, top[b][h]);
                const float base = most == -INFINITY ? 0.0f : most;
                const float factor = fast_exp2(top[b][h] - base);
                top[b][h] = most;
                float sum = 0;
#pragma unroll
                for (int k = 0; k < kKeys / 8; ++k) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& y = x[b][k][2 * h + e];
                        y = fast_exp2(fmaf(y, scale, -base));
                        sum += y;
                    }
                    w[b][k / 2][k % 2 * 2 + h] = pack<T>(x[b][k][2 * h], x[b][k][2 * h + 1]);
                }
                weight[b][h] = fmaf(weight[b][h], factor, sum);
#pragma unroll
                for (int d = 0; d < D / 8; ++d) {
                    out[b][d][2 * h] *= factor;
                    out[b][d][2 * h + 1] *= factor;
                }
            }
        }
        wait_for_copies();
        __syncthreads();  // V of this tile is there, and nobody reads its K any more
        if (t + 1 < tiles.count()) load_tile(shared_k, p.k, tiles.at(t + 1));
#pragma unroll
        for (int k = 0; k < kKeys; k += 16) {
#pragma unroll
            for (int d = 0; d < D; d += 16) {
                std::uint32_t m[4];
                load_transposed(m, v_of_lane + k * kStrideBytes + 2 * d);
#pragma unroll
                for (int b = 0; b < S::kBlocks; ++b) {
                    mma<T>(out[b][d / 8], w[b][k / 16], m[0], m[1]);
                    mma<T>(out[b][d / 8 + 1], w[b][k / 16], m[2], m[3]);
                }
            }
        }
    }

    // Through this warp's own rows of q in shared memory, so that whole rows are written.
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = weight[b][h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float factor = sum > 0 ? 1.0f / sum : 0.0f;
            const int row = warp_row + 16 * b + 8 * h + lane / 4;
            unsigned char* to = shared + row * kStrideBytes + 4 * (lane % 4);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                *reinterpret_cast<std::uint32_t*>(to + 16 * d) =
                    pack<T>(out[b][d][2 * h] * factor, out[b][d][2 * h + 1] * factor);
            }
            if (lane % 4 == 0 && row < rows) {
                p.lse[static_cast<std::int64_t>(head) * p.tokens_q + s.q + row0 + row] =
                    sum > 0 ? (top[b][h] + log2f(sum)) * kLn2 : -INFINITY;
            }
        }
    }
    __syncwarp();
    for (int piece = lane; piece < kWarpRows * kPieces; piece += 32) {
        const int row = warp_row + piece / kPieces, d = piece % kPieces * 8;
        if (row >= rows) break;
        if (d >= p.head_dim) continue;
        *reinterpret_cast<uint4*>(p.out.row<T>(s.q + row0 + row, head, p.head_dim) + d) =
            *reinterpret_cast<const uint4*>(shared + row * kStrideBytes + 2 * d);
    }
}

template <typename T, int D>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp) {
    using S = Shape<D>;
    const dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences),
                    static_cast<unsigned>((p.max_queries + S::kRows - 1) / S::kRows));
    MR_CHECK(grid.z <= 65535, "before Hopper a sequence has at most 4 million queries");
    allow_shared(forward_kernel<T, D>, S::kSharedBytes);
    launch(ctx, grid, S::kThreads, S::kSharedBytes, forward_kernel<T, D>, p, stamp);
}

template <typename T>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp) {
    if (p.head_dim <= 64) return launch_forward<T, 64>(ctx, p, stamp);
    if (p.head_dim <= 80) return launch_forward<T, 80>(ctx, p, stamp);
    if (p.head_dim <= 96) return launch_forward<T, 96>(ctx, p, stamp);
    if (p.head_dim <= 128) return launch_forward<T, 128>(ctx, p, stamp);
    launch_forward<T, 256>(ctx, p, stamp);
}

}  // namespace

void forward_mma(const Context& ctx, const Problem& p, Stamp* stamp) {
    if (p.dtype == DType::bf16) return launch_forward<bf16>(ctx, p, stamp);
    launch_forward<__half>(ctx, p, stamp);
}

}  // namespace mr::cuda::flash
