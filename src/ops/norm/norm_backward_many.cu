// The norm's backward over many rows, at the speed of memory (sm_90): rows_backward() of
// norm_backward.cu, with these changes:
// - bulk copies load x, dy and the residual's gradient: every group of threads has a ring of
//   kStages rows in shared memory, and the next row is loaded while this one is computed. There
//   a row's residual was loaded only when its sums were known, one more latency per row, and no
//   register was left to load it earlier;
// - the weights stay in shared memory. Through L1, which written data passes, they would come
//   from L2 again for every row;
// - the sums of dx over rows, the gradient of the preceding bias,
//   are computed in the same pass.
#include <algorithm>

#include "core/cuda/bulk.cuh"
#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_backward_many.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int kFewestRows = 64;
constexpr int kStages = 2;
constexpr int kSums = 3;  // sums over rows: dweight, dbias, dsum

// Bytes of a row in the ring: x, the residual's gradient, dy.
__host__ __device__ constexpr unsigned stage_bytes(int cols) {
    return static_cast<unsigned>(cols) * (4 + 4 + 2);
}

// Sums a and b over the group, each in one order. `shared`: 2 kThreads / 32 floats.
template <int kThreads, typename Team>
__device__ __forceinline__ void group_sums(float& a, float& b, int thread, float* shared,
                                           Team team) {
    a = warp_sum(a);
    b = warp_sum(b);
    if constexpr (kThreads > 32) {
        constexpr int kAll = kThreads / 32;
        if (thread % 32 == 0) {
            shared[thread / 32] = a;
            shared[kAll + thread / 32] = b;
        }
        team.sync();
        a = b = 0;
#pragma unroll
        for (int w = 0; w < kAll; ++w) {
            a += shared[w];
            b += shared[kAll + w];
        }
    }
}

// cols is a multiple of 8, at most 4 kChunks kThreads; kExact: exactly that, so no bounds are
// checked. kGroups groups of kThreads per block.
template <int kThreads, int kChunks, int kGroups, bool kExact>
__global__ void __launch_bounds__(kThreads* kGroups, 2)
    many_rows_backward(const NormBackwardArgs a) {
    constexpr int kSpace = kRowShared<kThreads> + kThreads / 16;
    extern __shared__ float4
        ring[];  // [group, stage, row], at the end [group, sums, cols]; then weights
    __shared__ std::uint64_t barriers[kGroups][kStages];
    __shared__ float spaces[kGroups][kSpace];
    const int group = static_cast<int>(threadIdx.x) / kThreads;
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    const int cols = a.cols;
    const unsigned stage_size = stage_bytes(cols), f32_row = 4u * static_cast<unsigned>(cols);
    char* mine =
        reinterpret_cast<char*>(ring) + static_cast<unsigned>(group) * kStages * stage_size;
    const unsigned barrier = shared_address(barriers[group]);
    const WarpsTeam<kThreads> team{group * kThreads, 1 + group};
    const auto sync = [&] {
        if constexpr (kThreads == 32) {
            __syncwarp();
        } else {
            team.sync();
        }
    };
    float* weights =
        reinterpret_cast<float*>(reinterpret_cast<char*>(ring) + kGroups * kStages * stage_size);
    for (int i = static_cast<int>(threadIdx.x) * 4; i < cols; i += kThreads * kGroups * 4) {
        float w[4];
        load4_weight(a.weight + i, w);
        store4(weights + i, w);
    }
    if (thread == 0) {
        for (int i = 0; i < kStages; ++i) barrier_init(barrier + 8 * i, 1);
        barriers_ready();
    }
    __syncthreads();
    wait_for_previous();
    stamp_begin(a.stamp);
    let_next_start();

    const int step = static_cast<int>(gridDim.x) * kGroups;
    const int first_row = static_cast<int>(blockIdx.x) * kGroups + group;
    const auto bring = [&](int row, int stage) {
        const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);
        const unsigned to = shared_address(mine) + static_cast<unsigned>(stage) * stage_size;
        const unsigned there = barrier + 8 * static_cast<unsigned>(stage);
        const int bytes = static_cast<int>(f32_row);
        barrier_expect(there, a.residual ? static_cast<int>(stage_size) : bytes / 2 * 3);
        copy_bulk(to, static_cast<const float*>(a.x) + first, bytes, there);
        if (a.residual)
            copy_bulk(to + f32_row, static_cast<const float*>(a.residual) + first, bytes, there);
        copy_bulk(to + 2 * f32_row, static_cast<const bf16*>(a.dy) + first, bytes / 2, there);
    };
    if (thread == 0) {
        for (int i = 0; i < kStages; ++i) {
            if (first_row + i * step < a.rows) bring(first_row + i * step, i);
        }
    }
    const auto column = [&](int k) { return (thread + kThreads * k) * 4; };
    const auto inside = [&](int k) { return kExact || column(k) < cols; };
    const float inverse = __frcp_rn(static_cast<float>(cols));
    float dweight[kChunks][4] = {}, dbias[kChunks][4] = {}, dsum[kChunks][4] = {};
    int stage = 0;
    unsigned parity = 0;
    for (int row = first_row; row < a.rows; row += step) {
        const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);
        const auto* x =
            reinterpret_cast<const float*>(mine + static_cast<unsigned>(stage) * stage_size);
        const float* residual = x + cols;
        const auto* dy = reinterpret_cast<const bf16*>(residual + cols);
        barrier_wait(barrier + 8 * static_cast<unsigned>(stage), parity);
        float h[kChunks][4];
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            unpack4(inside(k) ? load_raw4(x + column(k)) : zero_raw4<float>(), h[k]);
        }
        const RowStats stats =
            row_stats<kThreads, kChunks>(a.kind, h, cols, a.eps, thread, spaces[group], team);
        float sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (!inside(k)) continue;
            float d[4], w[4];
            load4(dy + column(k), d);
            load4(weights + column(k), w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                h[k][i] = __fmul_rn(__fsub_rn(h[k][i], stats.mean), stats.rstd);
                add_to_sums(d[i], w[i], h[k][i], sum_g, sum_gh, dweight[k][i], dbias[k][i]);
            }
        }
        group_sums<kThreads>(sum_g, sum_gh, thread, spaces[group] + kRowShared<kThreads>, team);
        const float mean_g = a.kind == NormKind::layer ? __fmul_rn(sum_g, inverse) : 0.0f;
        const float mean_gh = __fmul_rn(sum_gh, inverse);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (!inside(k)) continue;
            float d[4], w[4], r[4] = {};
            if (a.residual) load4(residual + column(k), r);
            load4(dy + column(k), d);
            load4(weights + column(k), w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                r[i] = gradient_of(d[i], w[i], h[k][i], mean_g, mean_gh, stats.rstd, r[i]);
                dsum[k][i] += r[i];
            }
            store4(static_cast<float*>(a.dx) + first + column(k), r);
            if (a.copy) store4(a.copy + first + column(k), r);
        }
        sync();  // the row and the group's scratch have been read
        if (thread == 0 && row + kStages * step < a.rows) bring(row + kStages * step, stage);
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }

    // The groups' shares replace the rows in shared memory, and are added in order.
    static_assert(kSums * 4 <= kStages * (4 + 4 + 2), "a group's own place is large enough");
    const auto place = [&](int g) {
        return reinterpret_cast<float*>(reinterpret_cast<char*>(ring) +
                                        static_cast<unsigned>(g) * kStages * stage_size);
    };
    float* share = place(group);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        if (!inside(k)) continue;
        store4(share + column(k), dweight[k]);
        store4(share + cols + column(k), dbias[k]);
        store4(share + 2 * cols + column(k), dsum[k]);
    }
    __syncthreads();
    float* part =
        a.parts + static_cast<std::size_t>(blockIdx.x) * kSums * static_cast<std::size_t>(cols);
    for (int i = static_cast<int>(threadIdx.x) * 4; i < kSums * cols; i += kThreads * kGroups * 4) {
        float sum[4] = {};
        for (int g = 0; g < kGroups; ++g) {
            float v[4];
            load4(place(g) + i, v);
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[j] += v[j];
        }
        store4(part + i, sum);
    }
    stamp_end(a.stamp);
}

template <int kThreads, int kChunks, int kGroups>
int start(const Context& ctx, const NormBackwardArgs& a) {
    const auto kernel = a.cols == 4 * kThreads * kChunks
                            ? many_rows_backward<kThreads, kChunks, kGroups, true>
                            : many_rows_backward<kThreads, kChunks, kGroups, false>;
    const std::size_t shared = std::size_t{kGroups * kStages} * stage_bytes(a.cols) +
                               sizeof(float) * static_cast<std::size_t>(a.cols);
    const int blocks = std::min(kManyBackwardBlocks, (a.rows + kGroups - 1) / kGroups);
    allow_shared(kernel, shared);
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(kThreads * kGroups), shared, kernel, a);
    return blocks;
}

}  // namespace

int start_norm_backward_many(const Context& ctx, const NormBackwardArgs& a) {
    if (this_gpu().sm < 90 || a.rows < kFewestRows || a.cols % 8 != 0) return 0;
    // As many groups as leave room for the rings of two blocks.
    if (a.cols <= 768) return start<32, 6, 6>(ctx, a);
    if (a.cols <= 1024) return start<32, 8, 4>(ctx, a);
    if (a.cols <= 2048) return start<256, 2, 1>(ctx, a);
    return 0;
}

}  // namespace mr::cuda
