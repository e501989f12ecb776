// The backward in two passes on the tensor cores of sm_80 and up (mma.sync, cp.async). two.cuh says
// what the passes compute. A block of four warps has 64 own rows, 16 per warp; other rows are
// loaded in tiles, the next one while this one is computed. P and dS go from the accumulators of
// their products into the next ones as they are, so warps share nothing but tiles.
#include "ops/attention/flash/backward/dispatch.cuh"
#include "ops/attention/flash/backward/two.cuh"
#include "ops/attention/paged/mma.cuh"

namespace mr::cuda::flash {
namespace {

constexpr int kOwn = 64, kThreads = 128;
constexpr float kLog2E = 1.4426950408889634f;

template <int kDim>
struct Layout {
    static constexpr int kOther = kDim <= 64 ? 64 : 32;
    static constexpr int kRow = kDim * 2 + 16;  // bytes; an odd number of 16s: no bank conflicts
    static constexpr int kOwnTile = kOwn * kRow, kOtherTile = kOther * kRow;
    static constexpr int kA1 = 0, kA2 = kA1 + kOwnTile, kB = kA2 + kOwnTile;
    static constexpr int kLse = kB + 4 * kOtherTile;  // b1 and b2 of two stages; lse2 and delta
    static constexpr int kBytes = kLse + 4 * kOther * 4;
};

template <typename T, int kDim, bool kKeys>
__global__ void __launch_bounds__(kThreads) backward_tiles(TwoPassArgs args) {
    using L = Layout<kDim>;
    constexpr int kOther = L::kOther, kBlocks = kOther / 8;
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const TwoPassWalk<kKeys, kOwn, kOther> walk(p);
    if (walk.own >= walk.own_rows) return;
    extern __shared__ __align__(16) std::byte shared[];
    const unsigned base = shared_address(shared);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

    const auto load = [&](unsigned to, const View& from, std::int64_t token, int rows, int most,
                          int head) {
        constexpr int kChunks = kDim / 8;
        for (int i = thread; i < most * kChunks; i += kThreads) {
            const int row = i / kChunks, chunk = i % kChunks;
            const bool on = row < rows && 8 * chunk < p.head_dim;
            copy16(to + row * L::kRow + chunk * 16,
                   from.row<T>(token + (on ? row : 0), head, p.head_dim) + (on ? 8 * chunk : 0),
                   on);
        }
    };
    const auto read_row = [&](int head, int query) -> float2 {  // lse2 and delta
        if (query >= walk.s.queries) return {__int_as_float(0x7f800000), 0};
        const std::int64_t at = head * std::int64_t{p.tokens_q} + walk.s.q + query;
        const float lse = p.lse[at];
        return {lse > -__int_as_float(0x7f800000) ? lse * kLog2E : __int_as_float(0x7f800000),
                args.delta[at]};
    };
    auto* numbers = reinterpret_cast<float*>(shared + L::kLse);  // [stage][lse2, delta][kOther]

    struct Step {
        int head, other;
    };
    const int count = walk.end - walk.begin;
    const int steps = kKeys ? count * p.group : walk.sink_end + count;
    const auto step_of = [&](int n) -> Step {
        if (kKeys) return {walk.head + n / count, (walk.begin + n % count) * kOther};
        return {walk.head, (n < walk.sink_end ? n : walk.begin + n - walk.sink_end) * kOther};
    };
    const auto load_step = [&](int n) {
        const Step step = step_of(n);
        const int head = kKeys ? step.head : walk.kv_head, rows = walk.other_rows - step.other;
        const unsigned to = base + L::kB + n % 2 * 2 * L::kOtherTile;
        load(to, walk.b1(p), walk.other_token(step.other), rows, kOther, head);
        load(to + L::kOtherTile, walk.b2(args), walk.other_token(step.other), rows, kOther, head);
        if (kKeys && thread < kOther) {
            const float2 row = read_row(step.head, step.other + thread);
            numbers[n % 2 * 2 * kOther + thread] = row.x;
            numbers[n % 2 * 2 * kOther + kOther + thread] = row.y;
        }
    };

    load(base + L::kA1, walk.a1(p), walk.own_token(walk.own), walk.own_rows - walk.own, kOwn,
         kKeys ? walk.kv_head : walk.head);
    load(base + L::kA2, walk.a2(args), walk.own_token(walk.own), walk.own_rows - walk.own, kOwn,
         kKeys ? walk.kv_head : walk.head);
    if (steps > 0) load_step(0);
    commit_copies();

    float sum1[kDim / 8][4], sum2[kDim / 8][4];
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum1[i][e] = sum2[i][e] = 0;
    }
    const int x = walk.own + 16 * warp + lane / 4;  // and x + 8
    float2 mine[2] = {};
    if (!kKeys) {
        mine[0] = read_row(walk.head, x);
        mine[1] = read_row(walk.head, x + 8);
    }
    const float scale2 = p.scale * kLog2E;
    const unsigned a_at =
        base + (16 * warp + lane % 8 + lane / 8 % 2 * 8) * L::kRow + lane / 16 * 16;

    for (int n = 0; n < steps; ++n) {
        wait_for_copies();
        __syncthreads();  // the tile has arrived, and the other stage is free
        if (n + 1 < steps) load_step(n + 1);
        commit_copies();
        const Step step = step_of(n);
        const unsigned b1 = base + L::kB + n % 2 * 2 * L::kOtherTile, b2 = b1 + L::kOtherTile;

        float s[kBlocks][4], dp[kBlocks][4];
        const auto scores = [&](float(&d)[kBlocks][4], unsigned a, unsigned b) {
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
            const unsigned b_at = b + (lane / 16 * 8 + lane % 8) * L::kRow + lane / 8 % 2 * 16;
#pragma unroll
            for (int k = 0; k < kDim / 16; ++k) {
                std::uint32_t from_a[4], from_b[4];
                attn::load_matrices(from_a, a + k * 32);
#pragma unroll
                for (int i = 0; i < kBlocks; i += 2) {
                    attn::load_matrices(from_b, b_at + i * 8 * L::kRow + k * 32);
                    mma<T>(d[i], from_a, from_b[0], from_b[1]);
                    mma<T>(d[i + 1], from_a, from_b[2], from_b[3]);
                }
            }
        };
        scores(s, a_at + L::kA1, b1);
        scores(dp, a_at + L::kA2, b2);
        const bool whole = walk.whole(p, step.other);
        std::uint32_t p16[kBlocks][2], ds16[kBlocks][2];
        const float* row_numbers = numbers + n % 2 * 2 * kOther;
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
            float w[4], ds[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int y = 8 * i + 2 * (lane % 4) + e % 2;
                const float2 row =
                    kKeys ? make_float2(row_numbers[y], row_numbers[kOther + y]) : mine[e / 2];
                w[e] = exp2f(fmaf(s[i][e], scale2, -row.x));
                if (!whole && !walk.sees(p, x + e / 2 * 8, step.other + y)) w[e] = 0;
                ds[e] = w[e] * (dp[i][e] - row.y);
            }
            p16[i][0] = pack<T>(w[0], w[1]);
            p16[i][1] = pack<T>(w[2], w[3]);
            ds16[i][0] = pack<T>(ds[0], ds[1]);
            ds16[i][1] = pack<T>(ds[2], ds[3]);
        }
        const auto sums = [&](float(&d)[kDim / 8][4], const std::uint32_t(&a)[kBlocks][2],
                              unsigned b) {
            const unsigned b_at = b + (lane % 8 + lane / 8 % 2 * 8) * L::kRow + lane / 16 * 16;
#pragma unroll
            for (int k = 0; k < kOther / 16; ++k) {
#pragma unroll
                for (int i = 0; i < kDim / 8; i += 2) {
                    std::uint32_t from_b[4];
                    attn::load_transposed(from_b, b_at + k * 16 * L::kRow + i * 16);
                    mma<T>(d[i], a[2 * k][0], a[2 * k][1], a[2 * k + 1][0], a[2 * k + 1][1],
                           from_b[0], from_b[1]);
                    mma<T>(d[i + 1], a[2 * k][0], a[2 * k][1], a[2 * k + 1][0], a[2 * k + 1][1],
                           from_b[2], from_b[3]);
                }
            }
        };
        sums(sum1, ds16, b1);
        if (kKeys) sums(sum2, p16, b2);
    }
    wait_for_copies();

    const int head = kKeys ? walk.kv_head : walk.head;
    const auto store = [&](const View& to, const float(&d)[kDim / 8][4], float factor) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (x + 8 * r >= walk.own_rows) continue;
            T* row = to.row<T>(walk.own_token(x + 8 * r), head, p.head_dim) + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                if (8 * i >= p.head_dim) break;
                *reinterpret_cast<std::uint32_t*>(row + 8 * i) =
                    pack<T>(d[i][2 * r] * factor, d[i][2 * r + 1] * factor);
            }
        }
    };
    store(kKeys ? args.views.dk : args.views.dq, sum1, p.scale);
    if (kKeys) store(args.views.dv, sum2, 1.0f);
}

template <typename T, int kDim, bool kKeys>
void start(const Context& ctx, TwoPassArgs args) {
    const Problem& p = args.p;
    args.tiles = ((kKeys ? p.max_keys : p.max_queries) + kOwn - 1) / kOwn;
    if (args.tiles == 0) return;
    const std::int64_t pairs = std::int64_t{p.sequences} * (kKeys ? p.kv_heads : p.heads);
    auto* kernel = backward_tiles<T, kDim, kKeys>;
    allow_shared(kernel, Layout<kDim>::kBytes);
    launch(ctx, dim3(static_cast<unsigned>(pairs), static_cast<unsigned>(args.tiles)),
           dim3(kThreads), Layout<kDim>::kBytes, kernel, args);
}

template <typename T>
void start_dim(const Context& ctx, const TwoPassArgs& args) {
    const auto both = [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        start<T, kDim, true>(ctx, args);
        start<T, kDim, false>(ctx, args);
    };
    switch (backward_dim(args.p.head_dim)) {
        case 64:
            return both(std::integral_constant<int, 64>{});
        case 80:
            return both(std::integral_constant<int, 80>{});
        case 96:
            return both(std::integral_constant<int, 96>{});
        default:
            return both(std::integral_constant<int, 128>{});
    }
}

}  // namespace

void backward_mma(const Context& ctx, const Problem& p, const BackwardViews& views, Stamp* stamp) {
    const TwoPassArgs args = two_pass_args(ctx, p, views, stamp, kOwn);
    p.dtype == DType::bf16 ? start_dim<bf16>(ctx, args) : start_dim<__half>(ctx, args);
}

}  // namespace mr::cuda::flash
