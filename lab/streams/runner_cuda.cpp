#include "lab/streams/runner.h"

#include <algorithm>
#include <chrono>

#include "core/cuda/check.h"
#include "core/error.h"
#include "lab/streams/work.h"

namespace mr::streams {
namespace {

constexpr cuda::Stamp kNever{~0ull, 0ull};

// Records an event for timing; in a captured stream, at every launch of the graph.
void stamp(const cuda::Stream& stream, const cuda::Event& event, bool captured) {
    MR_CUDA_CALL(cudaEventRecordWithFlags(
        event.raw(), stream.raw(), captured ? cudaEventRecordExternal : cudaEventRecordDefault));
}

// Events time copies, and kernels stamp themselves: two clocks of the same rate. One moment on
// both: seconds since an event, and the device's clock in ns.
struct Clocks {
    double seconds = 0;
    unsigned long long ns = 0;
};

// A kernel between two events reads the clock; of several tries, the one with the closest events is
// used. Records `origin` first.
Clocks compare_clocks(const cuda::Stream& stream, cuda::Stamp* scratch, const cuda::Event& origin) {
    constexpr int kTries = 5;
    stream.record(origin);
    Clocks out;
    double nearest = 0;
    for (int i = 0; i < kTries; ++i) {
        const cuda::Event before(true), after(true);
        stream.record(before);
        launch_clock(stream, scratch);
        stream.record(after);
        cuda::Stamp stamp{};
        stream.to_host(&stamp, scratch, sizeof stamp, nullptr);
        stream.synchronize();
        const double apart = after.seconds_since(before);
        if (i > 0 && apart >= nearest) continue;
        nearest = apart;
        out = {before.seconds_since(origin) + apart / 2, stamp.begin};
    }
    return out;
}

// One engine makes the copies of a direction, one after another. The stamp before a copy says when
// its stream reached it; it began when the engine was free.
void wait_for_engine(std::vector<Bar>& bars, int track) {
    std::vector<Bar*> copies;
    for (Bar& bar : bars) {
        if (bar.track == track) copies.push_back(&bar);
    }
    const auto end = [](const Bar* bar) { return bar->begin + bar->seconds; };
    std::ranges::sort(copies, [&](const Bar* a, const Bar* b) { return end(a) < end(b); });
    double free = 0;
    for (Bar* bar : copies) {
        const double until = end(bar);
        bar->begin = std::clamp(free, bar->begin, until);
        bar->seconds = until - bar->begin;
        free = until;
    }
}

}  // namespace

Runner::Runner(Arrays& arrays, const Schedule& schedule, int iterations, bool stamped)
    : arrays_(arrays), schedule_(schedule), iterations_(iterations), done_(schedule.ops.size()) {
    MR_CHECK(!fault_in(schedule), "every access is ordered");
    MR_CHECK(schedule.cut.count == arrays.count(), "the schedule is of this array");
    for (int i = 0; i < schedule.streams; ++i) {
        streams_.push_back(schedule.synchronous
                               ? std::make_unique<cuda::Stream>(static_cast<CUstream_st*>(nullptr))
                               : std::make_unique<cuda::Stream>());
        joins_.emplace_back();
    }
    for (const Op& op : schedule_.ops) {
        for (const int wait : op.waits) {
            auto& event = done_[static_cast<std::size_t>(wait)];
            if (!event) event.emplace();
        }
    }
    if (stamped) {
        stamps_.emplace();
        for (std::size_t i = 0; i < schedule_.ops.size(); ++i) {
            stamps_->begin.emplace_back(true);
            stamps_->end.emplace_back(true);
        }
        const std::size_t count = schedule_.ops.size() + 1;
        stamps_->memory = cuda::DeviceArena("stamps", count * sizeof(cuda::Stamp));
        stamps_->of_ops = stamps_->memory.array<cuda::Stamp>(count);
    }
    if (schedule_.graph) capture();
}

void Runner::capture() {
    const cuda::Stream& first = *streams_.front();
    graph_ = cuda::Graph::capture(first, [&] {
        first.record(fork_);
        for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i]->wait(fork_);
        issue();
        for (std::size_t i = 1; i < streams_.size(); ++i) {
            streams_[i]->record(joins_[i]);
            first.wait(joins_[i]);
        }
    });
}

void Runner::issue() {
    for (std::size_t i = 0; i < schedule_.ops.size(); ++i) issue(i);
}

void Runner::issue(std::size_t i) {
    const Op& op = schedule_.ops[i];
    const cuda::Stream& stream = *streams_[static_cast<std::size_t>(op.stream)];
    for (const int wait : op.waits) stream.wait(*done_[static_cast<std::size_t>(wait)]);
    const std::size_t begin = schedule_.cut.begin(op.chunk), size = schedule_.cut.size(op.chunk);
    float* device = arrays_.device() + schedule_.cut.begin(op.slot);
    const bool copies = op.step != Step::compute;
    if (stamps_ && copies) stamp(stream, stamps_->begin[i], schedule_.graph);
    switch (op.step) {
        case Step::copy_in:
            stream.to_device(device, arrays_.in(schedule_.pinned) + begin, size * sizeof(float),
                             nullptr);
            break;
        case Step::compute:
            launch_work(stream, device, size, iterations_, stamps_ ? stamps_->of_ops + i : nullptr);
            break;
        case Step::copy_out:
            stream.to_host(arrays_.out(schedule_.pinned) + begin, device, size * sizeof(float),
                           nullptr);
            break;
    }
    if (stamps_ && copies) stamp(stream, stamps_->end[i], schedule_.graph);
    if (done_[i]) stream.record(*done_[i]);
    if (schedule_.synchronous) stream.synchronize();
}

void Runner::synchronize() const {
    for (const auto& stream : streams_) stream->synchronize();
}

double Runner::run() {
    const auto start = std::chrono::steady_clock::now();
    if (graph_) {
        graph_.launch(*streams_.front());
    } else {
        issue();
    }
    synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count();
}

void Runner::clear_stamps() {
    const std::vector<cuda::Stamp> never(schedule_.ops.size() + 1, kNever);
    streams_.front()->to_device(stamps_->of_ops, never.data(), never.size() * sizeof(never[0]),
                                nullptr);
    synchronize();
}

Timeline Runner::timeline() {
    MR_CHECK(stamps_.has_value(), "the runner has stamps");
    const cuda::Stream& first = *streams_.front();
    const std::size_t ops = schedule_.ops.size();
    run();  // warm-up
    clear_stamps();
    const cuda::Event origin(true);
    const Clocks clocks = compare_clocks(first, stamps_->of_ops + ops, origin);
    run();
    std::vector<cuda::Stamp> stamps(ops);
    first.to_host(stamps.data(), stamps_->of_ops, stamps.size() * sizeof(stamps[0]), nullptr);
    first.synchronize();

    Timeline out{{"copy in", "compute", "copy out"}, {}};
    for (std::size_t i = 0; i < ops; ++i) {
        const Op& op = schedule_.ops[i];
        Bar bar{static_cast<int>(op.step), op.chunk, 0, 0};
        if (op.step == Step::compute) {
            bar.begin = clocks.seconds + static_cast<double>(stamps[i].begin - clocks.ns) * 1e-9;
            bar.seconds = static_cast<double>(stamps[i].end - stamps[i].begin) * 1e-9;
        } else {
            bar.begin = stamps_->begin[i].seconds_since(origin);
            bar.seconds = stamps_->end[i].seconds_since(stamps_->begin[i]);
        }
        out.bars.push_back(bar);
    }
    wait_for_engine(out.bars, static_cast<int>(Step::copy_in));
    wait_for_engine(out.bars, static_cast<int>(Step::copy_out));
    begin_at_zero(out);
    return out;
}

}  // namespace mr::streams
