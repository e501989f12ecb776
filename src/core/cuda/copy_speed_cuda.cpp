#include "core/cuda/copy_speed.h"

#include <algorithm>
#include <cstring>

#include "core/cuda/device.h"

namespace mr::cuda {

CopySpeed measure_copy_speed() {
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    constexpr int kPasses = 6, kRepeats = 2;  // the first pass only wakes the link
    require_device();
    const DeviceArena device("the copy measurement", kBytes);
    const PinnedBuffer host(kBytes);
    std::memset(host.data(), 1, kBytes);
    const Stream stream;
    const auto best = [&](auto&& copy) {
        double rate = 0;
        for (int pass = 0; pass < kPasses; ++pass) {
            const Event begin(true), end(true);
            stream.record(begin);
            for (int i = 0; i < kRepeats; ++i) copy();
            stream.record(end);
            end.synchronize();
            rate =
                std::max(rate, kRepeats * static_cast<double>(kBytes) / end.seconds_since(begin));
        }
        return rate;
    };
    CopySpeed out;
    out.to_device = best([&] { stream.to_device(device.data(), host.data(), kBytes, nullptr); });
    out.to_host = best([&] { stream.to_host(host.data(), device.data(), kBytes, nullptr); });
    return out;
}

}  // namespace mr::cuda
