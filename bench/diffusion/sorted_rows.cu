// A sampler like the first ones on a GPU: every row is fully sorted by the toolkit's radix sort,
// and a block walks the sorted row to filter and draw.
#include <cub/device/device_segmented_radix_sort.cuh>
#include <memory>
#include <vector>

#include "bench/diffusion/diffusion.h"
#include "core/cuda/device.h"
#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "core/philox.h"

namespace mr::diffusion {
namespace {

struct SortedPlace {
    float temperature, top_p, min_p;
    std::int32_t top_k;
    std::uint64_t seed;
    std::int64_t position;
    std::int32_t step;
    std::int32_t drawn;
};

__global__ void number_rows(float* logits, std::int32_t* ids, int vocab, int mask) {
    const std::int64_t row = blockIdx.y;
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < vocab;
         i += static_cast<int>(gridDim.x * blockDim.x)) {
        ids[row * vocab + i] = i;
        if (i == mask) logits[row * vocab + i] = -__builtin_huge_valf();
    }
}

// One block per row; all sums in f64, in a fixed order of the block's threads.
__global__ void draw_sorted(const float* sorted, const std::int32_t* ids, int vocab,
                            const SortedPlace* places, ops::Guess* out) {
    constexpr int kThreads = 256;
    __shared__ double sums[kThreads];
    const std::int64_t row = blockIdx.x;
    const SortedPlace place = places[row];
    const float* const x = sorted + row * vocab;
    const auto t = static_cast<int>(threadIdx.x);
    const double best = x[0];
    const auto sum_of = [&](int count, double temperature) {
        double sum = 0;
        for (int i = t; i < count; i += kThreads) {
            sum += exp((static_cast<double>(x[i]) - best) / temperature);
        }
        __syncthreads();
        sums[t] = sum;
        __syncthreads();
        for (int step = kThreads / 2; step > 0; step /= 2) {
            if (t < step) sums[t] += sums[t + step];
            __syncthreads();
        }
        return sums[0];
    };
    const double whole = sum_of(vocab, 1.0);
    const bool greedy = place.temperature == 0;
    const double temperature = greedy ? 1.0 : static_cast<double>(place.temperature);
    const int most = place.top_k > 0 ? min(place.top_k, vocab) : vocab;
    const double total = sum_of(most, temperature);
    if (t != 0) return;
    int drawn = 0;
    double probability = 1;
    if (!greedy) {
        double kept = 0;
        int count = 0;
        while (count < most) {
            const double weight = exp((static_cast<double>(x[count]) - best) / temperature);
            if (count > 0 && weight < static_cast<double>(place.min_p)) break;
            kept += weight;
            ++count;
            if (place.top_p < 1 && kept >= static_cast<double>(place.top_p) * total) break;
        }
        const auto word = philox(place.seed, static_cast<std::uint64_t>(place.position),
                                 static_cast<std::uint64_t>(place.step))[0];
        const double target = static_cast<double>(unit_float(word)) * kept;
        double sum = 0;
        for (int i = 0; i < count; ++i) {
            const double weight = exp((static_cast<double>(x[i]) - best) / temperature);
            if (weight == 0) break;
            drawn = i;
            probability = weight / kept;
            sum += weight;
            if (sum > target) break;
        }
    }
    ops::Guess guess;
    guess.id = ids[row * vocab + drawn];
    guess.confidence = static_cast<float>(place.drawn ? probability : 1 / whole);
    guess.logprob = static_cast<float>(static_cast<double>(x[drawn]) - best - log(whole));
    out[row] = guess;
}

class SortedRowsCuda final : public SortedRows {
  public:
    SortedRowsCuda(const Context& ctx, std::int64_t rows, std::int64_t vocab, std::int32_t mask)
        : ctx_(ctx), rows_(rows), vocab_(static_cast<int>(vocab)), mask_(mask) {
        const auto count = static_cast<std::size_t>(rows * vocab);
        std::vector<std::int64_t> offsets;
        for (std::int64_t r = 0; r <= rows; ++r) offsets.push_back(r * vocab);
        MR_CUDA_CALL(cub::DeviceSegmentedRadixSort::SortPairsDescending(
            nullptr, scratch_bytes_, static_cast<const float*>(nullptr),
            static_cast<float*>(nullptr), static_cast<const std::int32_t*>(nullptr),
            static_cast<std::int32_t*>(nullptr), static_cast<int>(count), static_cast<int>(rows),
            static_cast<const std::int64_t*>(nullptr), static_cast<const std::int64_t*>(nullptr), 0,
            32, ctx_.cuda->raw()));
        const auto padded = [](std::size_t bytes) { return cuda::DeviceArena::padded(bytes); };
        const auto n = static_cast<std::size_t>(rows);
        memory_ = cuda::DeviceArena("sorted rows", 3 * padded(count * 4) + padded(scratch_bytes_) +
                                                       padded((n + 1) * sizeof(std::int64_t)) +
                                                       padded(n * sizeof(SortedPlace)) +
                                                       padded(n * sizeof(ops::Guess)));
        ids_ = memory_.array<std::int32_t>(count);
        sorted_ = memory_.array<float>(count);
        sorted_ids_ = memory_.array<std::int32_t>(count);
        scratch_ = memory_.array<std::byte>(scratch_bytes_);
        offsets_ = memory_.array<std::int64_t>(n + 1);
        places_ = memory_.array<SortedPlace>(n);
        guesses_ = memory_.array<ops::Guess>(n);
        ctx_.cuda->to_device(offsets_, offsets.data(), offsets.size() * sizeof(std::int64_t),
                             nullptr);
        ctx_.cuda->synchronize();
    }

    void guess(Tensor logits, std::span<const model::Place> places,
               std::span<ops::Guess> out) override {
        if (places.empty()) return;
        const auto rows = static_cast<unsigned>(places.size());
        MR_CHECK(static_cast<std::int64_t>(rows) <= rows_, "the rows were planned");
        host_.clear();
        for (const model::Place& place : places) {
            MR_CHECK(place.how->remask != ops::Remask::entropy, "this sampler has no entropy");
            const ops::SampleParams& s = *place.sampling;
            host_.push_back({s.temperature, s.top_p, s.min_p, s.top_k, s.seed, place.position,
                             place.step, place.how->drawn});
        }
        cudaStream_t stream = ctx_.cuda->raw();
        ctx_.cuda->to_device(places_, host_.data(), host_.size() * sizeof(SortedPlace),
                             ctx_.ledger);
        number_rows<<<dim3(64, rows), 256, 0, stream>>>(logits.f32(), ids_, vocab_, mask_);
        MR_CUDA_CALL(cub::DeviceSegmentedRadixSort::SortPairsDescending(
            scratch_, scratch_bytes_, logits.f32(), sorted_, ids_, sorted_ids_,
            static_cast<int>(rows) * vocab_, static_cast<int>(rows), offsets_, offsets_ + 1, 0, 32,
            stream));
        draw_sorted<<<rows, 256, 0, stream>>>(sorted_, sorted_ids_, vocab_, places_, guesses_);
        MR_CUDA_CALL(cudaGetLastError());
        ctx_.cuda->to_host(out.data(), guesses_, out.size_bytes(), ctx_.ledger);
        if (!ctx_.ledger) return;
        // Every pass of the sort, 4 of 8 bits, reads and writes keys and ids.
        const std::uint64_t bytes = std::uint64_t{rows} * static_cast<std::uint64_t>(vocab_) * 8;
        ctx_.ledger->add(OpKind::sample, {1, 4 * bytes, 4 * bytes, 0, 0});
    }

  private:
    const Context ctx_;
    const std::int64_t rows_;
    const int vocab_;
    const std::int32_t mask_;
    cuda::DeviceArena memory_;
    std::size_t scratch_bytes_ = 0;
    std::int32_t *ids_ = nullptr, *sorted_ids_ = nullptr;
    float* sorted_ = nullptr;
    std::byte* scratch_ = nullptr;
    std::int64_t* offsets_ = nullptr;
    SortedPlace* places_ = nullptr;
    ops::Guess* guesses_ = nullptr;
    std::vector<SortedPlace> host_;
};

}  // namespace

std::unique_ptr<SortedRows> SortedRows::make(const Context& ctx, std::int64_t most_rows,
                                             std::int64_t vocab, std::int32_t mask) {
    if (!ctx.cuda) return nullptr;
    return std::make_unique<SortedRowsCuda>(ctx, most_rows, vocab, mask);
}

}  // namespace mr::diffusion
