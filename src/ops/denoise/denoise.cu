#include <cstdint>

#include "core/cuda/cluster.cuh"
#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/denoise/denoise_cuda.h"
#include "ops/sample/sample_row.cuh"

namespace mr::cuda {
namespace {

using namespace sampling;

// A row as in the sampler (sample_row.cuh), with statistics of the whole distribution.
template <bool kCluster>
class RowGuess : RowDraw<kCluster, true> {
    using Base = RowDraw<kCluster, true>;
    using Base::each, Base::raw_, Base::raw_best_, Base::best_, Base::nan_, Base::row_;
    using Base::first_, Base::end_;
    using typename Base::Blocks;

  public:
    __device__ RowGuess(Work& work, float* memory, float* logits, int vocab)
        : Base(work, memory, logits, vocab), logits_(logits) {}

    // The result is valid in the first thread of the first block.
    __device__ DeviceGuess guess(const SampleState& state, const GuessRow& how, int mask) {
        // Each block reads its part of the row after it has written there.
        if (thread() == 0 && mask >= first_ && mask < end_) logits_[mask] = -kInfinity;
        __syncthreads();
        Base::load(state, 0);
        Base::agree_on_best();
        if (nan_ || !(best_ > -kInfinity)) {
            Blocks::sync();  // no block may exit while another reads its memory
            return {{0, 0, 0, 0}, nan_ ? kSampleNan : kSampleNone};
        }
        const u64 spread = how.entropy ? weighted_nats() : 0;
        const bool draws = how.truth < 0 && row_.temperature > 0;
        const Drawn drawn = draws ? Base::sampled() : Base::most_probable();
        if (!draws) Blocks::sync();
        if (Blocks::rank() != 0 || thread() != 0) return {};
        const int id = how.truth < 0 ? drawn.id : how.truth;
        const double sum = static_cast<double>(drawn.softmax) * 0x1p-40;
        DeviceGuess out{};
        out.guess.id = id;
        out.guess.confidence =
            how.drawn && how.truth < 0 ? drawn.probability : static_cast<float>(1 / sum);
        const float x = raw_[id];
        double below = static_cast<double>(x) - static_cast<double>(raw_best_);
        if (raw_best_ == kInfinity) {
            below = x == kInfinity ? 0.0 : -static_cast<double>(kInfinity);
        }
        out.guess.logprob = static_cast<float>(below - log(sum));
        if (how.entropy) {
            const double entropy = log(sum) + static_cast<double>(spread) * 0x1p-40 / sum;
            out.guess.entropy = static_cast<float>(entropy > 0 ? entropy : 0);
        }
        return out;
    }

  private:
    // The sum of e^x (-x) over the row, x at most 0, in units of 2^-40.
    __device__ u64 weighted_nats() {
        u64 sum = 0;
        if (raw_best_ < kInfinity) {
            each([&](int, float x) {
                const float nats = fmaxf(raw_best_ - x, 0.0f);
                if (nats < 100.0f) sum += __float2ull_rn(__expf(-nats) * nats * 0x1p40f);
            });
        }
        return Base::team_sum(sum);
    }

    float* logits_;
};

template <bool kCluster>
__global__ void __launch_bounds__(kThreads, 2)
    guess_rows(float* logits, int vocab, const GuessRow* rows, int mask, DeviceGuess* out,
               Stamp* stamp) {
    extern __shared__ __align__(16) float memory[];
    __shared__ Work work;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int row = static_cast<int>(blockIdx.x) / Team<kCluster>::size();
    const GuessRow& how = rows[row];
    if (!how.sampling.active) return;  // the place is already settled
    SampleState state;
    // load() reads parameters from here; it writes nothing.
    state.rows = const_cast<SampleRow*>(&how.sampling);
    RowGuess<kCluster> draw(work, memory, logits + static_cast<std::int64_t>(row) * vocab, vocab);
    const DeviceGuess guess = draw.guess(state, how, mask);
    if (Team<kCluster>::rank() == 0 && thread() == 0) out[row] = guess;
}

}  // namespace

GuessRow guess_row(const ops::SampleParams& sampling, const ops::DenoiseParams& how,
                   std::int64_t position, std::int32_t step, std::int32_t truth) {
    GuessRow row{};
    row.sampling.temperature = sampling.temperature;
    row.sampling.top_p = sampling.top_p;
    row.sampling.min_p = sampling.min_p;
    row.sampling.repeat_penalty = 1;
    row.sampling.top_k = sampling.top_k;
    row.sampling.active = 1;
    row.sampling.seed = sampling.seed;
    row.sampling.position = position;
    row.sampling.step = step;
    row.truth = truth;
    row.drawn = how.drawn ? 1 : 0;
    row.entropy = how.remask == ops::Remask::entropy ? 1 : 0;
    return row;
}

void guess(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
           DeviceGuess* out, int team) {
    MR_CHECK(logits.dtype == DType::f32 && logits.shape.rank == 2, "logits are f32 [rows, vocab]");
    const std::int64_t count = logits.shape[0], vocab = logits.shape[1];
    MR_CHECK(count > 0 && vocab > 0 && vocab <= 1 << 19 && mask < vocab,
             "there are rows of at most 2^19 tokens");
    if (team == 0) team = usual_team(vocab);
    MR_CHECK(team <= 8 && sample_team_fits(vocab, team), "the device has teams of that size");
    const OpRecord work{1, logits.bytes() + static_cast<std::uint64_t>(count) * sizeof(GuessRow),
                        static_cast<std::uint64_t>(count) * sizeof(DeviceGuess),
                        4 * static_cast<std::uint64_t>(count * vocab), 0};
    Stamp* stamp = account(ctx, OpKind::sample, "guess", work);
    const std::size_t shared = slice_bytes(vocab, team);
    const auto start = [&](auto* kernel, auto&& launch_it) {
        allow_shared(kernel, shared);
        launch_it(kernel, logits.f32(), static_cast<int>(vocab), rows, static_cast<int>(mask), out,
                  stamp);
    };
    if (team > 1) {
        start(guess_rows<true>, [&](auto... args) {
            launch_clusters(ctx, static_cast<unsigned>(count), static_cast<unsigned>(team),
                            dim3(kThreads), shared, args...);
        });
    } else {
        start(guess_rows<false>, [&](auto... args) {
            launch(ctx, dim3(static_cast<unsigned>(count)), dim3(kThreads), shared, args...);
        });
    }
}

}  // namespace mr::cuda
