// The sinks of a pass of many rows. The forwards over pages (flash/forward) compute attention from
// the row's window on, with one q. Sinks before the window are few: here a warp adds them for one
// row and head.
#include "core/cuda/vec4.cuh"
#include "ops/attention/paged/common.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kWarps = 8;
constexpr int kPieces = kMaxDim / 128;  // of four elements, per lane

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    add_sinks_kernel(const __grid_constant__ Args a, const std::int32_t* sequence, const float* lse,
                     int lse_rows, int sequences) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(a.stamp);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int index = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
    const int row = a.first[0] + index / a.heads, head = index % a.heads;
    if (row >= a.first[sequences]) return;
    const int s = sequence[row], kv_head = head / a.group, dim = a.head_dim;
    const int sinks = min(a.mask.sinks, a.positions[row] - a.mask.window + 1);
    if (sinks <= 0) return;
    const std::int64_t at = (static_cast<std::int64_t>(row) * a.heads + head) * dim;
    T* out = static_cast<T*>(a.out) + at;
    const T* asks = asking<T>(a, true) + at;
    const std::int32_t* pages = table_of(a, s, true);

    float q[kPieces][4] = {}, sum[kPieces][4] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int d = (lane + 32 * i) * 4;
        if (d >= dim) continue;
        load4(asks + d, q[i]);
        load4(out + d, sum[i]);
    }
    // The sums so far count as one key: its score is their logarithm, its value is `out`.
    float top = lse[static_cast<std::int64_t>(head) * lse_rows + row] * kLog2e;
    float weight = top == -INFINITY ? 0.0f : 1.0f;
    for (int key = 0; key < sinks; ++key) {
        const int page = pages[key / kPageKeys];
        const T* k = cache_at<T>(a, a.keys, page, kv_head, key, dim);
        const T* v = cache_at<T>(a, a.values, page, kv_head, key, dim);
        float score = 0;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int d = (lane + 32 * i) * 4;
            if (d >= dim) continue;
            float x[4];
            load4(k + d, x);
#pragma unroll
            for (int e = 0; e < 4; ++e) score = fmaf(q[i][e], x[e], score);
        }
        score = warp_sum(score) * a.scale;
        const float most = fmaxf(top, score), base = base_of(most);
        const float before = exp2_fast(top - base), mine = exp2_fast(score - base);
        top = most;
        weight = fmaf(weight, before, mine);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int d = (lane + 32 * i) * 4;
            if (d >= dim) continue;
            float x[4];
            load4(v + d, x);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][e] = fmaf(sum[i][e], before, mine * x[e]);
        }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int d = (lane + 32 * i) * 4;
        if (d >= dim) continue;
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = normalised(sum[i][e], weight);
        store4(out + d, x);
    }
}

}  // namespace

void add_sinks(const Context& ctx, DType dtype, const ops::DeviceBatch& batch, const Args& args,
               const float* lse, int rows) {
    const auto blocks = static_cast<unsigned>((rows_of(batch) * args.heads + kWarps - 1) / kWarps);
    // Upper bound: rows whose window holds the first token have nothing to add.
    const auto width = static_cast<std::uint64_t>(rows_of(batch)) *
                       static_cast<std::uint64_t>(args.heads * args.head_dim);
    const auto sinks = static_cast<std::uint64_t>(args.mask.sinks);
    Args own = args;
    own.stamp =
        account(ctx, OpKind::attention, "sinks", {1, 4 * width, 2 * width, 4 * width * sinks, 0});
    const auto start = [&](auto type) {
        launch(ctx, dim3(blocks), dim3(32 * kWarps), 0, add_sinks_kernel<decltype(type)>, own,
               batch.sequence, lse, rows, batch.sequences);
    };
    if (dtype == DType::bf16) return start(bf16{});
    start(__half{});
}

}  // namespace mr::cuda::attn
