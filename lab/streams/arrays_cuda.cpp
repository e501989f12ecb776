#include "lab/streams/arrays.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "core/splitmix.h"
#include "lab/streams/work.h"

namespace mr::streams {

Arrays::Arrays(std::size_t count)
    : count_(count),
      in_(count),
      out_(count),
      expected_(count),
      pinned_in_(bytes()),
      pinned_out_(bytes()),
      memory_("the array, twice", 2 * cuda::DeviceArena::padded(bytes())) {
    device_ = memory_.array<float>(count);
    beside_ = memory_.array<float>(count);
    for (std::size_t i = 0; i < count; ++i) {  // from 0.5 to 1.5
        in_[i] = 0.5f + static_cast<float>(splitmix(i) >> 40) * 0x1p-24f;
    }
    std::memcpy(pinned_in_.data(), in_.data(), bytes());
    const cuda::Stream stream;
    stream.to_device(beside_, pinned_in_.data(), bytes(), nullptr);
    stream.synchronize();
    poison();
}

void Arrays::poison() {
    const cuda::Stream stream;
    stream.fill(device_, 0xff, bytes());
    std::memset(out_.data(), 0xff, bytes());
    std::memset(pinned_out_.data(), 0xff, bytes());
    stream.synchronize();
}

void Arrays::expect(int iterations) {
    expected_ = out_;
    constexpr std::size_t kSamples = 1000;
    const std::size_t step = count_ / kSamples + 1;
    for (std::size_t i = 0; i < count_; i += step) {
        const float wanted = worked(in_[i], iterations);
        require_same_bits(&expected_[i], &wanted, 1, fmt::format("synchronous, float {}", i));
    }
}

void Arrays::require_expected(bool pinned, const std::string& rung) const {
    require_same_bits(out(pinned), expected_.data(), count_, rung);
}

void require_same_bits(const float* got, const float* wanted, std::size_t count,
                       const std::string& what) {
    if (std::memcmp(got, wanted, count * sizeof(float)) == 0) return;
    std::size_t at = 0;
    while (std::bit_cast<std::uint32_t>(got[at]) == std::bit_cast<std::uint32_t>(wanted[at])) ++at;
    throw Error::device(
        {.field = what,
         .value = fmt::format("float {}", at),
         .problem = fmt::format("the result is {:.9g}, not {:.9g}", got[at], wanted[at]),
         .remedy = "the GPU, its memory or its link is at fault if this comes back: look at the "
                   "system's log, and report it if there is nothing"});
}

}  // namespace mr::streams
