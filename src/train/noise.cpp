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

// Streams of draws, in the upper half of Philox's: below them are numbers of places.
constexpr std::uint64_t kRates = std::uint64_t{0xD1F0} << 32;
constexpr std::uint64_t kPlaces = std::uint64_t{0xD1F1} << 32;

// The rates of one batch.
class Rates {
  public:
    Rates(std::uint64_t seed, std::uint64_t step, std::uint64_t blocks, int block)
        : words_(philox(seed, step, kRates)),
          order_(blocks, std::uint64_t{words_[1]} << 32 | words_[0]),
          blocks_(blocks),
          block_(block) {}
    int masked(std::uint64_t i) const {
        // In 32 bits behind the point: below 2^28 blocks there is room.
        const std::uint64_t u = ((order_(i) << 32) + words_[2]) / blocks_;
        return 1 + static_cast<int>((u * static_cast<std::uint64_t>(block_)) >> 32);
    }

  private:
    std::array<std::uint32_t, 4> words_;
    IndexPermutation order_;
    std::uint64_t blocks_;
    int block_;
};

}  // namespace

int masked_in_block(std::uint64_t seed, std::uint64_t step, std::uint64_t i, std::uint64_t blocks,
                    int block) {
    return Rates(seed, step, blocks, block).masked(i);
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
    const Rates rates(options.seed, step, half / block / copies, shape.block);
    std::copy(ids.begin(), ids.end(), to.ids.begin());
    std::copy(ids.begin(), ids.end(), to.ids.begin() + static_cast<std::ptrdiff_t>(half));
    std::vector<std::pair<std::uint32_t, std::size_t>> places(block);
    std::vector<bool> chosen(block);
    std::size_t count = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
        const bool rest = row % copies == 1;
        const std::size_t text = row / copies;
        for (std::size_t first = 0; first < seq; first += block) {
            const std::size_t place = text * seq + first;
            // The tokens with the smallest draws.
            const int masked = rates.masked(place / block);
            for (std::size_t i = 0; i < block; ++i) {
                places[i] = {philox(options.seed, step, kPlaces | (place + i))[0], i};
            }
            std::nth_element(places.begin(), places.begin() + (masked - 1), places.end());
            std::fill(chosen.begin(), chosen.end(), rest);
            for (int i = 0; i < masked; ++i) {
                chosen[places[static_cast<std::size_t>(i)].second] = !rest;
            }
            const float weight =
                options.complementary ? 1 : static_cast<float>(block) / static_cast<float>(masked);
            for (std::size_t i = 0; i < block; ++i) {
                if (!chosen[i]) continue;
                const std::size_t at = row * seq + first + i;
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
