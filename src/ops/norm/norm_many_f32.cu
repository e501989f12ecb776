// norm_many.cu for rows of f32 with a norm in bf16, as in training: a warp has a ring of rows
// filled by bulk copies, and the weights stay in shared memory.
#include <algorithm>

#include "core/cuda/bulk.cuh"
#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_many_f32.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int kFewestRows = 2048;
constexpr int kWarps = 8;   // per block
constexpr int kBlocks = 2;  // per multiprocessor
constexpr int kMostStages = 4;

// cols is a multiple of 4, at most 128 kChunks; kExact: exactly that.
template <int kChunks, bool kExact>
__global__ void __launch_bounds__(32 * kWarps, kBlocks)
    norm_f32_rows(const NormArgs a, int stages) {
    extern __shared__ float4 ring[];  // [warp, stage, row], weights, biases
    __shared__ std::uint64_t barriers[kWarps][kMostStages];
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int cols = a.cols;
    const float* mine = reinterpret_cast<const float*>(ring) + warp * stages * cols;
    const unsigned barrier = shared_address(barriers[warp]);
    float* weights = reinterpret_cast<float*>(ring) + kWarps * stages * cols;
    for (int i = static_cast<int>(threadIdx.x) * 4; i < cols; i += 32 * kWarps * 4) {
        float w[4], b[4] = {};
        load4_weight(a.weight + i, w);
        if (a.bias) load4_weight(a.bias + i, b);
        store4(weights + i, w);
        store4(weights + cols + i, b);
    }
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(barrier + 8 * static_cast<unsigned>(i), 1);
        barriers_ready();
    }
    __syncthreads();
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();

    const int step = static_cast<int>(gridDim.x) * kWarps;
    const int first_row = static_cast<int>(blockIdx.x) * kWarps + warp;
    const auto row_at = [&](int row) {
        return static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);
    };
    const auto bring = [&](int row, int stage) {
        const unsigned there = barrier + 8 * static_cast<unsigned>(stage);
        barrier_expect(there, 4 * cols);
        copy_bulk(shared_address(mine + stage * cols), static_cast<const float*>(a.x) + row_at(row),
                  4 * cols, there);
    };
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) {
            if (first_row + i * step < a.rows) bring(first_row + i * step, i);
        }
    }
    const auto column = [&](int k) { return (lane + 32 * k) * 4; };
    const auto inside = [&](int k) { return kExact || column(k) < cols; };
    int stage = 0;
    unsigned parity = 0;
    for (int row = first_row; row < a.rows; row += step) {
        barrier_wait(barrier + 8 * static_cast<unsigned>(stage), parity);
        float s[kChunks][4];
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            const float* from = mine + stage * cols + column(k);
            unpack4(inside(k) ? load_raw4(from) : zero_raw4<float>(), s[k]);
        }
        __syncwarp();  // all have read it
        if (lane == 0 && row + stages * step < a.rows) bring(row + stages * step, stage);
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
        const RowStats stats = row_stats<32, kChunks>(a.kind, s, cols, a.eps, lane, nullptr);
        bf16* out = static_cast<bf16*>(a.out) + row_at(row);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (!inside(k)) continue;
            float w[4], b[4], y[4];
            load4(weights + column(k), w);
            load4(weights + cols + column(k), b);
#pragma unroll
            for (int i = 0; i < 4; ++i) y[i] = normed(s[k][i], stats, w[i], b[i]);
            store4(out + column(k), y);
        }
    }
}

template <int kChunks>
void start(const Context& ctx, const NormArgs& a) {
    const auto kernel =
        a.cols == 128 * kChunks ? norm_f32_rows<kChunks, true> : norm_f32_rows<kChunks, false>;
    const auto shared_for = [&](int stages) {
        return sizeof(float) * static_cast<std::size_t>((kWarps * stages + 2) * a.cols);
    };
    // As many as leave room for two blocks of a multiprocessor of sm_90. A block of sm_120 has 99
    // KB.
    int stages = a.cols <= 768 ? 4 : a.cols <= 1024 ? 3 : 1;
    const std::size_t most =
        this_gpu().shared_per_block - sizeof(std::uint64_t) * kWarps * kMostStages;
    while (stages > 1 && shared_for(stages) > most) --stages;
    const std::size_t shared = shared_for(stages);
    const int blocks =
        std::min((a.rows + kWarps - 1) / kWarps, kBlocks * this_gpu().multiprocessors);
    allow_shared(kernel, shared);
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(32 * kWarps), shared, kernel, a, stages);
}

}  // namespace

bool start_norm_many_f32(const Context& ctx, const NormArgs& a) {
    if (this_gpu().sm < 90 || a.rows < kFewestRows || a.cols % 4 != 0) return false;
    if (a.residual || a.out2) return false;
    if (a.cols <= 768) {
        start<6>(ctx, a);
    } else if (a.cols <= 1024) {
        start<8>(ctx, a);
    } else if (a.cols <= 2048) {
        start<16>(ctx, a);
    } else {
        return false;
    }
    return true;
}

}  // namespace mr::cuda
