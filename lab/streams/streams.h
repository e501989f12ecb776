// What `millrace-lab streams` measures: an array goes to the device, a kernel computes on it, it
// comes back; on one stream or several, in different orders, compared with the time of the longest
// of the three parts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/progress.h"
#include "lab/streams/schedule.h"

namespace mr::streams {

struct Options {
    std::size_t count = 4'194'304;  // floats
    std::vector<int> streams = {1, 2, 4, 8, 16};
    // Numbers of chunks for schedules that have more chunks than streams. A stream per direction is
    // measured with each number, the others with the fastest of them.
    std::vector<int> chunks = {16, 32, 64, 128};
    int repetitions = 9;
    bool timelines = false;  // extra runs, with stamps
};

// One bar of a timeline, in seconds from the first bar on.
struct Bar {
    int track;
    int index;  // chunk or pass
    double begin, seconds;
};
struct Timeline {
    std::vector<std::string> tracks{};
    std::vector<Bar> bars{};
};

// A measured schedule; host seconds from the first call to the last result.
struct Rung {
    Schedule schedule;
    double seconds = 0;  // the median
    double best = 0;
    Timeline timeline{};
};

// Seconds for the whole array, from pinned memory, by the device's clock: medians.
struct Parts {
    double copy_in = 0, compute = 0, copy_out = 0;  // alone
    double copy_in_streams = 0;                     // in three parts on three streams
    double duplex_in = 0, duplex_out = 0;           // while the other direction runs
    Timeline duplex{};

    // No order of issue is faster.
    double limit() const { return std::max({duplex_in, compute, duplex_out}); }

    struct Row {
        const char* name;
        double seconds;
        bool copies;
    };
    std::array<Row, 6> rows() const {
        return {{{"copy in, alone", copy_in, true},
                 {"copy in on three streams", copy_in_streams, true},
                 {"compute, alone", compute, false},
                 {"copy out, alone", copy_out, true},
                 {"copy in while copies out run", duplex_in, true},
                 {"copy out while copies in run", duplex_out, true}}};
    }
};

// A short kernel beside a long one.
struct Latency {
    std::string name;
    double seconds = 0;       // of the short one, from its launch to its end: the median
    double long_seconds = 0;  // of the long one; 0: none
    Timeline timeline{};
};

struct Report {
    std::string gpu;
    int copy_engines = 0;
    int least_priority = 0, greatest_priority = 0;
    int iterations = 0;  // of the kernel, so that it takes as long as a copy in
    Parts parts;
    std::vector<Rung> rungs;  // the synchronous one first
    std::vector<Latency> priorities;

    double speed_up(const Rung& rung) const { return rungs.front().seconds / rung.seconds; }
    double of_limit(const Rung& rung) const { return parts.limit() / rung.seconds; }
    const Rung& best() const;
};

// The engineering log that the command repeats: four streams with pinned memory, an NVIDIA L20.
struct Log {
    static constexpr std::size_t kCount = 4'194'304;
    static constexpr int kStreams = 4;
    static constexpr double kSynchronousMs = 19.62, kStreamsMs = 7.78, kSpeedUp = 2.52;
};

// Mean seconds of the consecutive passes, ending at `ends`, that end by `until`; always counts the
// first.
double seconds_a_pass(const std::vector<double>& ends, double until);
// Moves the bars so that the first begins at 0.
void begin_at_zero(Timeline& timeline);

// Host memory of the measurement.
MemoryPlan host_plan(const Options& options);

// Error (device) if there is no GPU, or if a result has other bits than the synchronous one.
Report measure(const Options& options, const Progress& progress = {});

}  // namespace mr::streams
