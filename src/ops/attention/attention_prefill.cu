// Prefill attention on tensor cores, after FlashAttention-2: a block of rows of one head keeps its
// queries in shared memory and its sums in registers, and tiles of keys and values stream past with
// a running maximum and sum for every row. Tiles that no row sees are never visited, and only tiles
// on the edge of the mask pay for it.
#include "ops/attention/attention_common.cuh"
#include "ops/attention/attention_mma.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kTileKeys = kStepKeys;  // two pages
static_assert(kTileKeys == 2 * kPageKeys);

// kWarps warps with kBlocks m16 blocks of rows each. Two blocks a warp use every piece of K and V
// that comes from shared memory twice; at head_dim 256 the registers suffice for one.
template <int D>
struct Shape {
    static constexpr int kBlocks = D <= 128 ? 2 : 1;
    static constexpr int kWarps = D <= 128 ? 4 : 8;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kRows = 16 * kBlocks * kWarps;
    static constexpr int kMinBlocks = D <= 128 ? 2 : 1;
    // Rows in shared memory are one 16-byte piece longer: an odd number of pieces, so that the
    // eight rows of a matrix lie in different banks.
    static constexpr int kStride = D + 8;
    static constexpr int kSharedBytes = (kRows + 2 * kTileKeys) * kStride * 2;
};

template <typename T, int D>
__global__ void __launch_bounds__(Shape<D>::kThreads, Shape<D>::kMinBlocks)
    prefill_kernel(const __grid_constant__ Args a) {
    using S = Shape<D>;
    constexpr int kPieces = D / 8;  // of 16 bytes, in a row
    constexpr int kPagePieces = kPageKeys * kPieces;
    constexpr int kStrideBytes = S::kStride * 2;
    constexpr int kWarpRows = 16 * S::kBlocks;
    // q [kRows, kStride], then k and v [kTileKeys, kStride]
    extern __shared__ __align__(16) unsigned char shared[];
    const auto shared_q = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const std::uint32_t shared_k = shared_q + S::kRows * kStrideBytes;
    const std::uint32_t shared_v = shared_k + kTileKeys * kStrideBytes;

    const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
    const int head = static_cast<int>(blockIdx.x), kv_head = head / a.group;
    const int s = static_cast<int>(blockIdx.y);
    const std::int32_t* pages = a.pages + static_cast<std::int64_t>(s) * a.max_pages;

    wait_for_previous();
    let_next_start();
    const StageClock clock(a.stamp);
    const int first = a.first[s], count = a.first[s + 1] - first;
    // The last rows of a causal sequence see most keys: they go first.
    const int row0 = static_cast<int>(gridDim.z - 1 - blockIdx.z) * S::kRows;
    const int rows = min(S::kRows, count - row0);
    if (rows <= 0) return;
    const int keys = min(a.positions[first + count - 1] + 1, a.max_keys);
    const auto sees = [&](int row) { return visible(a.mask, keys, keys - count + row0 + row); };
    const KeyRange all{sees(0).lo, sees(rows - 1).hi};  // and the sinks
    const int sinks = a.mask.sinks;
    // The tile after the one at n: behind the sinks, the first that somebody sees.
    const auto tile_after = [&](int n) {
        n += kTileKeys;
        return n < sinks ? n : max(n, all.lo / kTileKeys * kTileKeys);
    };

    // What the rows of this warp see: all of them [inner.lo, inner.hi), any of them [outer.lo,
    // outer.hi), and the sinks. The maximum of lo belongs to the last row, and so on.
    const int warp_row = warp * kWarpRows;
    KeyRange inner{0, 0}, outer{0, 0};
    if (warp_row < rows) {
        const KeyRange top = sees(warp_row), bottom = sees(min(warp_row + kWarpRows, rows) - 1);
        inner = {bottom.lo, top.hi};
        outer = {top.lo, bottom.hi};
    }

    // q: [rows, head_dim] of one head; rows that are not there are zeros.
    const auto row_at = [&](int row) {
        return (static_cast<std::int64_t>(first + row0 + row) * a.heads + head) * D;
    };
#pragma unroll
    for (int i = 0; i < S::kRows * kPieces / S::kThreads; ++i) {
        const int piece = tid + i * S::kThreads, row = piece / kPieces, d = piece % kPieces * 8;
        const bool on = row < rows;
        copy16(shared_q + row * kStrideBytes + 2 * d,
               static_cast<const T*>(a.q) + row_at(on ? row : 0) + d, on);
    }
    // The two pages of the tile at key n; a page that nobody sees is not looked up.
    const auto page_at = [&](int n) {
        const bool seen = n < all.hi && (n < sinks || n + kPageKeys > all.lo);
        return seen ? pages[n / kPageKeys] : 0;
    };
    const auto pages_at = [&](int n) { return int2{page_at(n), page_at(n + kPageKeys)}; };
    // A page's keys of one head lie together; in shared memory every row is a piece longer.
    const auto load_tile = [&](std::uint32_t to, const void* cache, int n, int2 page) {
        const T* low = cache_at<T>(a, cache, page.x, kv_head, 0, D);
        const T* high = cache_at<T>(a, cache, page.y, kv_head, 0, D) - 8 * kPagePieces;
        const int from = n < sinks ? 0 : max(0, all.lo - n);  // of its keys [from, from + count)
        const unsigned count = max(0, (n + kTileKeys > all.lo ? all.hi : sinks) - n - from);
#pragma unroll
        for (unsigned i = 0; i < kTileKeys * kPieces / S::kThreads; ++i) {
            const unsigned piece = threadIdx.x + i * S::kThreads, row = piece / kPieces;
            copy16(to + 16 * (piece + row), (piece < kPagePieces ? low : high) + 8 * piece,
                   row - static_cast<unsigned>(from) < count);
        }
        commit_copies();
    };
    // Where this lane's row of the four matrices of a load lies.
    const std::uint32_t q_of_lane =
        shared_q + (warp_row + lane % 16) * kStrideBytes + lane / 16 * 16;
    const std::uint32_t k_of_lane =
        shared_k + (lane % 8 + lane / 16 * 8) * kStrideBytes + lane / 8 % 2 * 16;
    const std::uint32_t v_of_lane = shared_v + lane % 16 * kStrideBytes + lane / 16 * 16;

    float out[S::kBlocks][D / 8][4] = {};
    float top[S::kBlocks][2], weight[S::kBlocks][2];
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
        top[b][0] = top[b][1] = -INFINITY;
        weight[b][0] = weight[b][1] = 0;
    }

    const int begin = tile_after(-kTileKeys);
    int2 page = pages_at(begin);
    load_tile(shared_k, a.keys, begin, page);
    for (int n = begin, then; n < all.hi; n = then) {
        then = tile_after(n);
        const bool works = n < outer.hi && (n + kTileKeys > outer.lo || n < sinks);
        wait_for_copies();
        __syncthreads();  // K of this tile is there, and nobody reads V of the last any more
        load_tile(shared_v, a.values, n, page);
        page = pages_at(then);

        std::uint32_t w[S::kBlocks][kTileKeys / 16][4];  // the weights, as the second product's A
        if (works) {
            float p[S::kBlocks][kTileKeys / 8][4] = {};  // scores, then weights
#pragma unroll
            for (int d = 0; d < D; d += 16) {
                std::uint32_t q[S::kBlocks][4];
#pragma unroll
                for (int b = 0; b < S::kBlocks; ++b) {
                    load_matrices(q[b], q_of_lane + 16 * b * kStrideBytes + 2 * d);
                }
#pragma unroll
                for (int k = 0; k < kTileKeys; k += 16) {
                    std::uint32_t m[4];
                    load_matrices(m, k_of_lane + k * kStrideBytes + 2 * d);
#pragma unroll
                    for (int b = 0; b < S::kBlocks; ++b) {
                        mma<T>(p[b][k / 8], q[b], m[0], m[1]);
                        mma<T>(p[b][k / 8 + 1], q[b], m[2], m[3]);
                    }
                }
            }
            if ((n < inner.lo && n + kTileKeys > sinks) || n + kTileKeys > inner.hi) {
                const int row_of_lane = computed_here(warp_row + lane / 4);
#pragma unroll
                for (int i = 0; i < 2 * S::kBlocks; ++i) {
                    const KeyRange range = sees(min(row_of_lane + 8 * i, rows - 1));
#pragma unroll
                    for (int k = 0; k < kTileKeys / 4; ++k) {
                        const int key = n + k / 2 * 8 + 2 * (lane % 4) + k % 2;
                        if (!range.holds(key, sinks)) {
                            p[i / 2][k / 2][i % 2 * 2 + k % 2] = -INFINITY;
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
                    for (int k = 0; k < kTileKeys / 8; ++k) {
                        most = fmaxf(most, fmaxf(p[b][k][2 * h], p[b][k][2 * h + 1]));
                    }
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                    most = fmaxf(most * a.scale, top[b][h]);
                    const float base = base_of(most), factor = exp2_fast(top[b][h] - base);
                    top[b][h] = most;
                    float sum = 0;
#pragma unroll
                    for (int k = 0; k < kTileKeys / 8; ++k) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            float& x = p[b][k][2 * h + e];
                            x = exp2_fast(fmaf(x, a.scale, -base));
                            sum += x;
                        }
                        w[b][k / 2][k % 2 * 2 + h] = pack<T>(p[b][k][2 * h], p[b][k][2 * h + 1]);
                    }
                    weight[b][h] = fmaf(weight[b][h], factor, sum);
#pragma unroll
                    for (int d = 0; d < D / 8; ++d) {
                        out[b][d][2 * h] *= factor;
                        out[b][d][2 * h + 1] *= factor;
                    }
                }
            }
        }
        wait_for_copies();
        __syncthreads();  // V of this tile is there, and nobody reads its K any more
        if (then < all.hi) load_tile(shared_k, a.keys, then, page);
        if (!works) continue;
#pragma unroll
        for (int k = 0; k < kTileKeys; k += 16) {
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
    if (begin >= all.hi) __syncthreads();  // no tile was visited: the copies of q are everybody's
    __syncwarp();
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = weight[b][h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float factor = sum == 0 ? 0.0f : 1.0f / sum;
            unsigned char* to =
                shared + (warp_row + 16 * b + 8 * h + lane / 4) * kStrideBytes + 4 * (lane % 4);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                *reinterpret_cast<std::uint32_t*>(to + 16 * d) =
                    pack<T>(out[b][d][2 * h] * factor, out[b][d][2 * h + 1] * factor);
            }
        }
    }
    __syncwarp();
    for (int piece = lane; piece < kWarpRows * kPieces; piece += 32) {
        const int row = warp_row + piece / kPieces, d = piece % kPieces * 8;
        if (row >= rows) break;
        *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + row_at(row) + d) =
            *reinterpret_cast<const uint4*>(shared + row * kStrideBytes + 2 * d);
    }
}

template <typename T, int D>
bool launch_prefill(const Context& ctx, int sequences, int max_count, const Args& args) {
    using S = Shape<D>;
    const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(sequences),
                    static_cast<unsigned>((max_count + S::kRows - 1) / S::kRows));
    MR_CHECK(grid.y <= 65535 && grid.z <= 65535, "the batch has at most 65535 sequences");
    allow_shared(prefill_kernel<T, D>, S::kSharedBytes);
    launch(ctx, grid, S::kThreads, S::kSharedBytes, prefill_kernel<T, D>, args);
    return true;
}

template <typename T>
bool launch_prefill(const Context& ctx, int sequences, int max_count, const Args& args) {
    switch (args.head_dim) {
        case 64:
            return launch_prefill<T, 64>(ctx, sequences, max_count, args);
        case 80:
            return launch_prefill<T, 80>(ctx, sequences, max_count, args);
        case 96:
            return launch_prefill<T, 96>(ctx, sequences, max_count, args);
        case 128:
            return launch_prefill<T, 128>(ctx, sequences, max_count, args);
        case 256:
            return launch_prefill<T, 256>(ctx, sequences, max_count, args);
        default:
            return false;
    }
}

}  // namespace

bool prefill_on_tensor_cores(const Context& ctx, DType dtype, int sequences, int max_count,
                             const Args& args) {
    if (dtype == DType::bf16) return launch_prefill<bf16>(ctx, sequences, max_count, args);
    if (dtype == DType::f16) return launch_prefill<__half>(ctx, sequences, max_count, args);
    return false;
}

}  // namespace mr::cuda::attn
