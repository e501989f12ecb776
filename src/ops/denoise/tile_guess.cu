// Guesses for rows whose draw is not filtered, from the records of their tiles (tile_draw.h). The
// records are in memory, or are made here from logits.
//
// A block has a row, each of its warps a run of neighbouring tiles. They reduce the best logit,
// then the sums, which are integers, so the order of additions changes no bit. The warp whose run
// contains the draw finds the tile.
#include <cstdint>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/denoise/tile_ask.cuh"
#include "ops/sample/sample_team.cuh"

namespace mr::cuda {
namespace {

using namespace sampling;

struct StoredRecords {
    const ops::TileRecord* records;  // [rows, tiles]
    int tiles;

    __device__ const ops::TileRecord& at(int row, int tile) const {
        return records[static_cast<std::int64_t>(row) * tiles + tile];
    }
    __device__ float best(int row, int tile, bool& nan) const {
        const ops::TileRecord& record = at(row, tile);
        nan = nan || record.nan();
        return record.best;
    }
    __device__ ops::TileRecord record(int row, int tile, const ops::TileAsk&) const {
        return at(row, tile);
    }
};

struct LogitRecords {
    const float* logits;  // [rows, vocab]
    int tiles, vocab, mask;

    __device__ float best(int row, int tile, bool& nan) const {
        const float* const from = logits + static_cast<std::int64_t>(row) * vocab;
        float best = -kInfinity;
        const int end = min((tile + 1) * ops::kDrawTile, vocab);
        for (int id = tile * ops::kDrawTile; id < end; ++id) {
            if (id == mask) continue;
            nan = nan || from[id] != from[id];
            best = fmaxf(best, from[id]);
        }
        return best;
    }
    __device__ ops::TileRecord record(int row, int tile, const ops::TileAsk& ask) const {
        const float* const from =
            logits + static_cast<std::int64_t>(row) * vocab + tile * ops::kDrawTile;
        return tile_record(tile, vocab, mask, ask, [&](int i) { return from[i]; });
    }
};

// The largest of all threads' values.
__device__ float block_max(float x, float* space) {
    const auto greater = [](float a, float b) { return fmaxf(a, b); };
    x = warp_reduce(x, greater);
    if (lane() == 0) space[warp()] = x;
    __syncthreads();
    return warp_reduce(space[lane() % kWarps], greater);
}

template <typename Records>
__global__ void __launch_bounds__(kThreads)
    guess_tiles(const Records records, const GuessRow* rows, DeviceGuess* out, Stamp* stamp) {
    __shared__ float space[kWarps];
    __shared__ u64 sums[kWarps];
    __shared__ u64 runs[kWarps];  // weights of the warps' tiles
    __shared__ int chosen;        // the drawn tile
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int row = static_cast<int>(blockIdx.x);
    const GuessRow& how = rows[row];
    if (!how.sampling.active) return;  // the place is already settled
    const ops::TileAsk ask = tile_ask(how);
    const int each = (records.tiles + kWarps - 1) / kWarps;
    const int first = warp() * each, end = min(first + each, records.tiles);
    if (thread() == 0) chosen = ask.truth < 0 ? records.tiles : ask.truth / ops::kDrawTile;

    float best = -kInfinity;
    bool nan = false;
    for (int t = first + lane(); t < end; t += 32) best = fmaxf(best, records.best(row, t, nan));
    best = block_max(best, space);
    const bool any_nan = __syncthreads_or(nan);
    if (any_nan || !(best > -kInfinity)) {
        if (thread() == 0) out[row] = {{0, 0, 0, 0}, any_nan ? kSampleNan : kSampleNone};
        return;
    }

    const float rate = ask.draws() ? ops::tile::rate_of(ask.temperature) : 0;
    const auto weight_of = [&](const ops::TileRecord& record) {
        return ops::tile::share(record.weight,
                                ops::tile::cooled(ops::tile::below(record.best, best), rate));
    };
    u64 sum = 0, spread = 0, weight = 0;
    for (int t = first + lane(); t < end; t += 32) {
        const ops::TileRecord record = records.record(row, t, ask);
        const float d = ops::tile::below(record.best, best);
        sum += ops::tile::share(record.sum, d);
        if (ask.entropy) spread += ops::tile::spread_share(record, d);
        if (ask.draws()) weight += weight_of(record);
        if (!ask.draws() && ask.truth < 0 && d == 0) atomicMin(&chosen, t);
    }
    sum = block_sum(sum, sums);
    if (ask.entropy) spread = block_sum(spread, sums);
    u64 kept = 0;
    if (ask.draws()) {
        weight = warp_reduce(weight, [](u64 a, u64 b) { return a + b; });
        if (lane() == 0) runs[warp()] = weight;
        __syncthreads();
        u64 before = 0;  // weight of the preceding warps
        for (int w = 0; w < kWarps; ++w) {
            before += w < warp() ? runs[w] : 0;
            kept += runs[w];
        }
        const u64 target = ops::tile::target_in(ops::tile::row_word(ask), kept);
        // Uniform in a warp.
        bool here = before < target && target <= before + weight;
        for (int t = first; here; t += 32) {
            const int tile = t + lane();
            u64 to = tile < end ? weight_of(records.record(row, tile, ask)) : 0;
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const u64 other = __shfl_up_sync(kAllLanes, to, static_cast<u32>(offset));
                if (lane() >= offset) to += other;
            }
            to += before;
            const u32 reached = __ballot_sync(kAllLanes, to >= target);
            if (reached && lane() == 0) chosen = t + __ffs(static_cast<int>(reached)) - 1;
            here = reached == 0;
            before = __shfl_sync(kAllLanes, to, 31);
        }
    }
    __syncthreads();
    if (thread() > 0) return;
    const ops::TileRecord record = records.record(row, chosen, ask);
    const double all = static_cast<double>(sum) * 0x1p-40;
    DeviceGuess made{};
    made.guess.id = chosen * ops::kDrawTile + record.candidate();
    made.guess.confidence = static_cast<float>(1 / all);
    if (how.drawn && ask.truth < 0) {
        const float x = ops::tile::below(record.logit, best);
        const double its = ops::tile::falling(ops::tile::cooled(x, rate));
        made.guess.confidence =
            ask.draws() ? static_cast<float>(its * 0x1p40 / static_cast<double>(kept)) : 1.0f;
    }
    const double below = ops::tile::below(record.logit, best);
    made.guess.logprob = static_cast<float>(below - log(all));
    if (ask.entropy) {
        const double entropy = log(all) + static_cast<double>(spread) * 0x1p-40 / all;
        made.guess.entropy = static_cast<float>(entropy > 0 ? entropy : 0);
    }
    out[row] = made;
}

template <typename Records>
void launch_tiles(const Context& ctx, const Records& records, std::int64_t count,
                  std::uint64_t bytes, const GuessRow* rows, DeviceGuess* out) {
    const auto all = static_cast<std::uint64_t>(count);
    Stamp* stamp = account(ctx, OpKind::sample, "guess",
                           {1, bytes + all * sizeof(GuessRow), all * sizeof(DeviceGuess),
                            4 * all * static_cast<std::uint64_t>(records.tiles), 0});
    launch(ctx, dim3(static_cast<unsigned>(count)), dim3(kThreads), 0, guess_tiles<Records>,
           records, rows, out, stamp);
}

}  // namespace

void guess_by_tiles(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
                    DeviceGuess* out) {
    MR_CHECK(logits.dtype == DType::f32 && logits.shape.rank == 2, "logits are f32 [rows, vocab]");
    const std::int64_t count = logits.shape[0], vocab = logits.shape[1];
    MR_CHECK(count > 0 && vocab > 0 && vocab <= 1 << 19 && mask < vocab,
             "there are rows of at most 2^19 tokens");
    const LogitRecords records{logits.f32(), static_cast<int>(ops::draw_tiles(vocab)),
                               static_cast<int>(vocab), mask};
    launch_tiles(ctx, records, count, logits.bytes(), rows, out);
}

void guess_by_records(const Context& ctx, const ops::TileRecord* records, std::int64_t count,
                      std::int64_t vocab, const GuessRow* rows, DeviceGuess* out) {
    MR_CHECK(count > 0 && vocab > 0 && vocab <= 1 << 19, "there are rows of at most 2^19 tokens");
    const std::int64_t tiles = ops::draw_tiles(vocab);
    launch_tiles(ctx, StoredRecords{records, static_cast<int>(tiles)}, count,
                 static_cast<std::uint64_t>(count * tiles) * sizeof(ops::TileRecord), rows, out);
}

}  // namespace mr::cuda
