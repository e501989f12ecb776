#include "lab/streams/streams.h"

#include <fmt/format.h>

#include <utility>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/median.h"
#include "lab/streams/arrays.h"
#include "lab/streams/parts.h"
#include "lab/streams/priorities.h"
#include "lab/streams/runner.h"

namespace mr::streams {
namespace {

constexpr int kWarmup = 2;
constexpr int kOrderStreams = Log::kStreams;  // for the schedules that differ in the order of issue

class Measurement {
  public:
    Measurement(const Options& options, Progress progress)
        : options_(options),
          progress_(std::move(progress)),
          arrays_(options.count),
          meter_(arrays_, options.repetitions),
          total_(2 * options.streams.size() + options.chunks.size() + 10) {}

    void run(Report& report) {
        tell();
        report.iterations = iterations_ = meter_.calibrate();
        meter_.measure(iterations_);
        report.rungs.push_back(measured(synchronous(options_.count), true));
        for (const bool pinned : {false, true}) {
            for (const int streams : options_.streams) {
                report.rungs.push_back(
                    measured(depth_first(cut_into(options_.count, streams), streams, pinned)));
            }
        }
        const Cut cut = by_direction(report);
        Schedule depth = depth_first(cut, kOrderStreams, true);
        depth.name = "depth-first";
        for (Schedule& schedule : std::vector<Schedule>{
                 stream_per_direction(cut, 2), as_graph(stream_per_direction(cut, 1)),
                 copy_and_compute(cut), std::move(depth),
                 breadth_first_in_rounds(cut, kOrderStreams), breadth_first(cut, kOrderStreams)}) {
            report.rungs.push_back(measured(std::move(schedule)));
        }
        tell();
        // Measured again, so that a change of the machine's speed meanwhile shows in the limit.
        meter_.measure(iterations_);
        report.parts = meter_.parts();
        tell();
        report.priorities = measure_priorities(arrays_, iterations_, report.parts.compute,
                                               options_.repetitions, options_.timelines);
    }

  private:
    // A stream per direction with each number of chunks; returns the fastest cut.
    Cut by_direction(Report& report) {
        const std::size_t first = report.rungs.size();
        for (const int chunks : options_.chunks) {
            report.rungs.push_back(
                measured(stream_per_direction(cut_into(options_.count, chunks), 1)));
        }
        return std::ranges::min_element(report.rungs.begin() + static_cast<std::ptrdiff_t>(first),
                                        report.rungs.end(), {}, &Rung::seconds)
            ->schedule.cut;
    }

    // The first, the last and the stamped run start from poisoned memory, and their results are
    // compared. `reference`: the first result becomes the reference.
    Rung measured(Schedule schedule, bool reference = false) {
        tell();
        Runner runner(arrays_, schedule, iterations_);
        std::vector<double> seconds;
        for (int i = 0; i < kWarmup + options_.repetitions; ++i) {
            const bool compared = i == 0 || i + 1 == kWarmup + options_.repetitions;
            if (compared) arrays_.poison();
            const double took = runner.run();
            if (i >= kWarmup) seconds.push_back(took);
            if (i == 0 && reference) arrays_.expect(iterations_);
            if (compared) arrays_.require_expected(schedule.pinned, title(schedule));
        }
        Rung rung{std::move(schedule), median(seconds), std::ranges::min(seconds), {}};
        if (options_.timelines) {
            arrays_.poison();
            rung.timeline = Runner(arrays_, rung.schedule, iterations_, true).timeline();
            arrays_.require_expected(rung.schedule.pinned, title(rung.schedule));
        }
        return rung;
    }

    static std::string title(const Schedule& s) {
        return fmt::format("{} ({} memory, {} chunks)", s.name, s.pinned ? "pinned" : "pageable",
                           s.cut.chunks);
    }

    void tell() {
        if (progress_) progress_("measuring", done_++, total_);
    }

    const Options& options_;
    Progress progress_;
    Arrays arrays_;
    PartsMeter meter_;
    std::uint64_t done_ = 0, total_;
    int iterations_ = 1;
};

int attribute(cudaDeviceAttr which) {
    int device = 0, value = 0;
    MR_CUDA_CALL(cudaGetDevice(&device));
    MR_CUDA_CALL(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

}  // namespace

Report measure(const Options& options, const Progress& progress) {
    Report report;
    report.gpu = cuda::require_device().name;
    report.copy_engines = attribute(cudaDevAttrAsyncEngineCount);
    MR_CUDA_CALL(
        cudaDeviceGetStreamPriorityRange(&report.least_priority, &report.greatest_priority));
    try {
        Measurement(options, progress).run(report);
    } catch (const cuda::OutOfMemory& error) {
        ErrorInfo info = error.info();
        info.remedy = "use a smaller --size, or end other programs on the GPU";
        throw cuda::OutOfMemory(std::move(info));
    }
    return report;
}

}  // namespace mr::streams
