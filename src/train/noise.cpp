#include "train/noise.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "train/batches.h"

namespace mr::train {
namespace {

// Streams of draws, in the upper half of Philox's range: the lower half is for positions.
constexpr std::uint64_t kRates = std::uint64_t{0xD1F0} << 32;
constexpr std::uint64_t kPlaces = std::uint64_t{0xD1F1} << 32;

// The rates of one batch.
class Rates {
  public:
    Rates(std::uint64_t seed, std::uint64_t step, std::uint64_t blocks)
        : words_(philox(seed, step, kRates)),
          order_(blocks, std::uint64_t{words_[1]} << 32 | words_[0]),
          blocks_(blocks) {}
    // The number of masked tokens in block i, which has `tokens` tokens.
    int masked(std::uint64_t i, std::size_t tokens) const {
        // Fixed point with 32 fractional bits: there is room for up to 2^28 blocks.
        // NOLINTNEXTLINE(clang-analyzer-core.*): the constructor sets all members
        const std::uint64_t u = ((order_(i) << 32) + words_[2]) / blocks_;
        return 1 + static_cast<int>((u * tokens) >> 32);
    }

  private:
    std::array<std::uint32_t, 4> words_;
    IndexPermutation order_;
    std::uint64_t blocks_;
};

}  // namespace

int masked_in_block(std::uint64_t seed, std::uint64_t step, std::uint64_t i, std::uint64_t blocks,
                    int tokens) {
    return Rates(seed, step, blocks).masked(i, static_cast<std::size_t>(tokens));
}

std::int64_t add_noise(const model::SlotParts<std::int32_t>& to, const model::TrainShape& shape,
                       std::span<const std::int32_t> ids, std::int64_t rows, std::uint64_t step,
                       const NoiseOptions& options) {
    const auto seq = static_cast<std::size_t>(shape.seq);
    const auto block = static_cast<std::size_t>(shape.block);
    const auto half = static_cast<std::size_t>(shape.half());
    MR_CHECK(ids.size() == half && seq % block == 0, "ids are [sequences, seq], in whole blocks");
    MR_CHECK(!options.complementary || shape.sequences % 2 == 0,
             "complementary rows come in pairs");
    const std::size_t copies = options.complementary ? 2 : 1;
    const Rates rates(options.seed, step, half / block / copies);
    for (std::size_t i = 0; i < half; ++i) {
        to.ids[i] = to.ids[half + i] = ids[i] < 0 ? ~ids[i] : ids[i];
    }
    std::vector<std::pair<std::uint32_t, std::size_t>> places;  // draw and position
    std::vector<bool> chosen(block);
    std::size_t count = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        const bool rest = row % copies == 1;
        for (std::size_t first = row * seq; first < (row + 1) * seq; first += block) {
            const std::size_t place = row / copies * seq + first % seq;
            places.clear();
            for (std::size_t i = 0; i < block; ++i) {
                if (ids[first + i] < 0) continue;
                places.emplace_back(philox(options.seed, step, kPlaces | (place + i))[0], i);
            }
            if (places.empty()) continue;
            // The tokens with the smallest draws.
            const auto masked =
                static_cast<std::size_t>(rates.masked(place / block, places.size()));
            std::sort(places.begin(), places.end());
            std::fill(chosen.begin(), chosen.end(), false);
            for (std::size_t i = 0; i < places.size(); ++i) {
                chosen[places[i].second] = (i < masked) != rest;
            }
            const float weight = options.complementary ? 1
                                                       : static_cast<float>(places.size()) /
                                                             static_cast<float>(masked);
            for (std::size_t at = first; at < first + block; ++at) {
                if (!chosen[at - first]) continue;
                to.ids[at] = options.mask;
                to.rows[count] = static_cast<std::int32_t>(at);
                to.targets[count] = ids[at];
                std::memcpy(&to.weights[count], &weight, sizeof weight);
                ++count;
            }
        }
    }
    return static_cast<std::int64_t>(count);
}

}  // namespace mr::train
