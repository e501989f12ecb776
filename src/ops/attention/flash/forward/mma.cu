// The forward for sm_80 and up, after FlashAttention-2: a block of rows of one head keeps its
// queries in shared memory and its sums in registers, and tiles of keys and values stream past with
// a running softmax. K of the next tile is copied while this tile's weights are multiplied with V,
// and V while the scores are computed. Keys and values are plain tensors or pages of a cache: only
// the count of a sequence's keys and the copies of tiles differ.
#include "core/cuda/fast_math.cuh"
#include "ops/attention/flash/dispatch.cuh"
#include "ops/attention/paged/mma.cuh"

namespace mr::cuda::flash {
namespace {

using attn::load_matrices;
using attn::load_transposed;

constexpr int kKeys = 64;  // per tile: two pages of a cache
static_assert(kKeys == 2 * PagedKeys::kPage);

// kWarps warps with kBlocks m16 blocks of rows each. Two blocks per warp use every piece of K and V
// that comes from shared memory twice; at head_dim 256 the registers suffice for one.
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

template <typename T, int D, bool kPaged>
__global__ void __launch_bounds__(Shape<D>::kThreads, Shape<D>::kMinBlocks)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ PagedKeys paged,
                   Stamp* stamp) {
    using S = Shape<D>;
    constexpr int kPieces = D / 8;  // 16-byte pieces per row
    constexpr int kStrideBytes = S::kStride * 2;
    constexpr int kWarpRows = 16 * S::kBlocks;
    static_assert(kKeys * kPieces % S::kThreads == 0);
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
    const int sequence = static_cast<int>(blockIdx.y);
    const Sequence s = kPaged ? paged.sequence(p, sequence) : p.sequence(sequence);
    // The last rows of a causal sequence see most keys: they go first.
    const int row0 = static_cast<int>(gridDim.z - 1 - blockIdx.z) * S::kRows;
    const int rows = min(S::kRows, s.queries - row0);
    if (rows <= 0) return;
    const KeyTiles<kKeys> tiles(p.mask, s.position(row0), s.position(row0 + rows - 1), s.keys);
    // The tiles that this warp's rows see; the warp skips the others. A warp without rows has none.
    const int warp_row = warp * kWarpRows;
    const KeyTiles<kKeys> mine(p.mask, s.position(row0 + warp_row),
                               s.position(row0 + min(warp_row + kWarpRows, rows) - 1),
                               warp_row < rows ? s.keys : 0);

    // Copies [rows, head_dim] of one head; missing elements become zeros.
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
    // The keys that any of the rows sees besides the sinks.
    const int any_hi = p.mask.hi(s.position(row0 + rows - 1), s.keys);
    const int any_lo = min(p.mask.lo(s.position(row0)), any_hi);
    // The two pages of the tile at key n. A page without a visible key is not copied and is
    // replaced by another page; so is every page if n is below 0, after the last tile.
    const auto pages_at = [&](int n) {
        int2 page{0, 0};
        if constexpr (kPaged) {
            const std::int32_t* table = paged.table + std::int64_t{sequence} * paged.max_pages;
            const auto page_at = [&](int key) {
                const int at = PagedKeys::or_seen(p.mask, max(key, 0), any_lo, any_hi);
                return table[ops::table_entry(at / PagedKeys::kPage, paged.max_pages)];
            };
            page = {page_at(n), page_at(n + PagedKeys::kPage)};
        }
        return page;
    };
    const auto load_tile = [&](unsigned to, const View& view, int n, int2 page) {
        if constexpr (kPaged) {
            // The keys of one head are contiguous in a page; in shared memory a row is one piece
            // longer. Keys that are not copied become zeros.
            constexpr unsigned kPagePieces = PagedKeys::kPage * kPieces;
            const auto begin_of = [&](int number) {
                const std::int64_t row = std::int64_t{number} * p.kv_heads + kv_head;
                return static_cast<const T*>(view.data) + row * PagedKeys::kPage * D;
            };
            const T* low = begin_of(page.x);
            const T* high = begin_of(page.y) - 8 * kPagePieces;
            const auto part = PagedKeys::part<kKeys>(p.mask, n, any_lo, any_hi);
            const unsigned thread = thread_here();  // registers are scarce in the loop
#pragma unroll
            for (unsigned i = 0; i < kKeys * kPieces / S::kThreads; ++i) {
                const unsigned piece = thread + i * S::kThreads, row = piece / kPieces;
                copy16(to + 16 * (piece + row), (piece < kPagePieces ? low : high) + 8 * piece,
                       part.holds(row));
            }
            commit_copies();
        } else {
            load(to, view, s.k + n, kv_head, s.keys - n, kKeys);
        }
    };
    load(shared_q, p.q, s.q + row0, head, rows, S::kRows);
    // The address of this lane's row of the four matrices of a load.
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
    const int first_tile = tiles.at(0);
    int2 page{0, 0};
    if (first_tile >= 0) {
        page = pages_at(first_tile);
        load_tile(shared_k, p.k, first_tile, page);
    }
    for (int n = first_tile, then; n >= 0; n = then) {
        then = tiles.after(n);
        const bool works = mine.visits(n);
        wait_for_copies();
        __syncthreads();  // K of this tile has arrived, V of the last one has been read
        load_tile(shared_v, p.v, n, page);
        page = pages_at(then);  // early: they have arrived when K is loaded

        std::uint32_t w[S::kBlocks][kKeys / 16][4];  // the weights, as the second product's A
        if (works) {
            float x[S::kBlocks][kKeys / 8][4] = {};  // scores, then weights
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
            if (mine.cut(n)) {
                const int first = s.position(row0 + warp_row + lane / 4);
                const int column = n + 2 * (lane % 4);
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
        }
        wait_for_copies();
        __syncthreads();  // V of this tile has arrived, its K has been read
        if (then >= 0) load_tile(shared_k, p.k, then, page);
        if (!works) continue;
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

    // Writes through this warp's rows of q in shared memory, so that whole rows are written.
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
            if ((!kPaged || p.lse) && lane % 4 == 0 && row < rows) {
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

template <typename T, int D, bool kPaged>
void launch_mma(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    using S = Shape<D>;
    const dim3 grid(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.sequences),
                    static_cast<unsigned>((p.max_queries + S::kRows - 1) / S::kRows));
    MR_CHECK(grid.y <= 65535, "a batch has at most 65535 sequences");
    MR_CHECK(grid.z <= 65535, "without wgmma a sequence has at most 8 million queries");
    const auto kernel = forward_kernel<T, D, kPaged>;
    static_assert(S::kSharedBytes <= (D <= 128 ? 99 : 133) * 1024);  // mma_fits()
    allow_shared(kernel, S::kSharedBytes);
    launch(ctx, grid, S::kThreads, S::kSharedBytes, kernel, p, paged, stamp);
}

template <typename T, int D>
void launch_mma(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    if (!paged.table) return launch_mma<T, D, false>(ctx, p, stamp, paged);
    static_assert(mma_takes_pages(D));
    MR_CHECK(p.head_dim == D, "a page's rows are as long as a tile's");
    launch_mma<T, D, true>(ctx, p, stamp, paged);
}

template <typename T>
void launch_mma(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    if (p.head_dim <= 64) return launch_mma<T, 64>(ctx, p, stamp, paged);
    if (p.head_dim <= 80) return launch_mma<T, 80>(ctx, p, stamp, paged);
    if (p.head_dim <= 96) return launch_mma<T, 96>(ctx, p, stamp, paged);
    if (p.head_dim <= 128) return launch_mma<T, 128>(ctx, p, stamp, paged);
    launch_mma<T, 256>(ctx, p, stamp, paged);
}

}  // namespace

void forward_mma(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    if (p.dtype == DType::bf16) return launch_mma<bf16>(ctx, p, stamp, paged);
    launch_mma<__half>(ctx, p, stamp, paged);
}

}  // namespace mr::cuda::flash
