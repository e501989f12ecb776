#include "lab/context/stage_clock.h"

#include <chrono>
#include <cstddef>
#include <vector>

#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::context {
namespace {

class HostClock final : public StageClock {
  public:
    void begin() override { last_ = Clock::now(); }
    void forward_ended() override { forward_ += lap(); }
    void upkeep_ended() override { upkeep_ += lap(); }
    void finish() override {}

  private:
    using Clock = std::chrono::steady_clock;
    double lap() {
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - last_).count();
        last_ = now;
        return seconds;
    }
    Clock::time_point last_;
};

#ifdef MR_CUDA

class DeviceClock final : public StageClock {
  public:
    explicit DeviceClock(const cuda::Stream& stream) : stream_(stream) {
        for (int i = 0; i < kAhead; ++i) {
            laps_.push_back({cuda::Event(true), cuda::Event(true), cuda::Event(true)});
        }
    }
    // The host runs ahead of the device by a limited number of steps.
    void begin() override {
        if (begun_ - read_ == kAhead) read();
        stream_.record(at(begun_++).begin);
    }
    void forward_ended() override { stream_.record(at(begun_ - 1).forward); }
    void upkeep_ended() override { stream_.record(at(begun_ - 1).upkeep); }
    void finish() override {
        while (read_ < begun_) read();
    }

  private:
    static constexpr int kAhead = 16;
    struct Lap {
        cuda::Event begin, forward, upkeep;
    };
    Lap& at(std::size_t i) { return laps_[i % kAhead]; }
    void read() {
        const Lap& lap = at(read_++);
        lap.upkeep.synchronize();
        forward_ += lap.forward.seconds_since(lap.begin);
        upkeep_ += lap.upkeep.seconds_since(lap.forward);
    }

    const cuda::Stream& stream_;
    std::vector<Lap> laps_;
    std::size_t begun_ = 0, read_ = 0;
};

#endif

}  // namespace

std::unique_ptr<StageClock> StageClock::make(const Context& ctx) {
    if (!ctx.cuda) return std::make_unique<HostClock>();
#ifdef MR_CUDA
    return std::make_unique<DeviceClock>(*ctx.cuda);
#else
    MR_CHECK(false, "a build without CUDA has no engine there");
#endif
}

}  // namespace mr::context
