#include "lab/streams/priorities.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/median.h"
#include "lab/streams/work.h"

namespace mr::streams {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShortCount = 16'384;  // floats: an eighth of what an H200 runs at a time
constexpr double kLongSeconds = 5e-3;        // at least, if the array is not tiny
constexpr double kMostTimes = 4096;
constexpr std::chrono::microseconds kUntilItRuns{200};

class Pair {
  public:
    Pair(Arrays& arrays, int iterations, double compute, cuda::Stream::Priority priority)
        : arrays_(arrays),
          iterations_(iterations),
          short_(priority),
          count_(std::min(kShortCount, arrays.count())),
          memory_("short job and stamps",
                  cuda::DeviceArena::padded(count_ * sizeof(float)) + 3 * sizeof(cuda::Stamp)),
          result_(count_) {
        x_ = memory_.array<float>(count_);
        stamps_ = memory_.array<cuda::Stamp>(2);
        times_ = static_cast<int>(std::clamp(std::ceil(kLongSeconds / compute), 1.0, kMostTimes));
    }

    struct Seconds {
        double of_short = 0, of_long = 0;
    };
    // The short one alone, or while the long one runs.
    Seconds once(bool beside_long, bool stamped) {
        short_.to_device(x_, arrays_.in(true), count_ * sizeof(float), nullptr);
        short_.synchronize();
        const cuda::Event long_begin(true), long_end(true), done;
        if (beside_long) {
            long_.record(long_begin);
            launch_busy(long_, arrays_.device(), arrays_.count(), iterations_, times_,
                        stamped ? stamps_ : nullptr);
            long_.record(long_end);
            long_begin.synchronize();
            std::this_thread::sleep_for(kUntilItRuns);
        }
        const auto start = Clock::now();
        launch_work(short_, x_, count_, iterations_, stamped ? stamps_ + 1 : nullptr);
        short_.record(done);
        while (!done.done()) {
        }
        const std::chrono::duration<double> took = Clock::now() - start;
        long_.synchronize();
        short_.to_host(result_.data(), x_, count_ * sizeof(float), nullptr);
        short_.synchronize();
        require_same_bits(result_.data(), arrays_.expected().data(), count_, "the short job");
        return {took.count(), beside_long ? long_end.seconds_since(long_begin) : 0};
    }

    Timeline timeline(bool beside_long) {
        std::vector<cuda::Stamp> stamps(2, cuda::Stamp{~0ull, 0ull});
        const std::size_t bytes = stamps.size() * sizeof(cuda::Stamp);
        short_.to_device(stamps_, stamps.data(), bytes, nullptr);
        short_.synchronize();
        once(beside_long, true);
        short_.to_host(stamps.data(), stamps_, bytes, nullptr);
        short_.synchronize();
        Timeline out{{"long job", "short job"}, {}};
        const unsigned long long origin = std::min(stamps[0].begin, stamps[1].begin);
        for (int i = 0; i < 2; ++i) {
            const cuda::Stamp& stamp = stamps[static_cast<std::size_t>(i)];
            if (stamp.end < stamp.begin) continue;  // it did not run
            out.bars.push_back({i, 0, static_cast<double>(stamp.begin - origin) * 1e-9,
                                static_cast<double>(stamp.end - stamp.begin) * 1e-9});
        }
        return out;
    }

  private:
    Arrays& arrays_;
    int iterations_;
    int times_ = 1;  // the long one takes this many times the kernel over the array
    cuda::Stream long_, short_;
    std::size_t count_;
    cuda::DeviceArena memory_;
    float* x_ = nullptr;             // [count_]
    cuda::Stamp* stamps_ = nullptr;  // the long one's, the short one's
    std::vector<float> result_;
};

}  // namespace

std::vector<Latency> measure_priorities(Arrays& arrays, int iterations, double compute,
                                        int repetitions, bool timelines) {
    struct Case {
        const char* name;
        cuda::Stream::Priority priority;
        bool beside_long;
    };
    constexpr Case kCases[] = {
        {"alone", cuda::Stream::Priority::normal, false},
        {"beside a long one, same priority", cuda::Stream::Priority::normal, true},
        {"beside a long one, high priority", cuda::Stream::Priority::high, true}};
    std::vector<Latency> out;
    for (const Case& c : kCases) {
        Pair pair(arrays, iterations, compute, c.priority);
        std::vector<double> of_short, of_long;
        for (int i = 0; i < repetitions + 2; ++i) {
            const Pair::Seconds seconds = pair.once(c.beside_long, false);
            if (i < 2) continue;
            of_short.push_back(seconds.of_short);
            of_long.push_back(seconds.of_long);
        }
        out.push_back({c.name, median(of_short), median(of_long), {}});
        if (timelines) out.back().timeline = pair.timeline(c.beside_long);
    }
    return out;
}

}  // namespace mr::streams
