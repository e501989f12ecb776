#include "lab/streams/parts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/median.h"
#include "lab/streams/work.h"

namespace mr::streams {
namespace {

constexpr int kPasses = 8;          // over the array, in each direction, per duplex sample
constexpr int kLinkWarmup = 3;      // an idle link is slow at first
constexpr int kMostWork = 1 << 20;  // iterations

template <typename Body>
double seconds_on(const cuda::Stream& stream, Body&& body) {
    const cuda::Event begin(true), end(true);
    stream.record(begin);
    body();
    stream.record(end);
    end.synchronize();
    return end.seconds_since(begin);
}

}  // namespace

PartsMeter::PartsMeter(Arrays& arrays, int repetitions)
    : arrays_(arrays), repetitions_(repetitions) {}

double PartsMeter::seconds_of_copy_in() {
    return seconds_on(
        in_, [&] { in_.to_device(arrays_.device(), arrays_.in(true), arrays_.bytes(), nullptr); });
}

double PartsMeter::seconds_of_copy_out() {
    return seconds_on(
        out_, [&] { out_.to_host(arrays_.out(true), arrays_.device(), arrays_.bytes(), nullptr); });
}

double PartsMeter::seconds_of_compute(int iterations) {
    return seconds_on(
        in_, [&] { launch_work(in_, arrays_.device(), arrays_.count(), iterations, nullptr); });
}

double PartsMeter::seconds_of_copy_in_on_streams() {
    const std::array<const cuda::Stream*, 3> streams{&in_, &out_, &third_};
    const Cut cut = cut_into(arrays_.count(), static_cast<int>(streams.size()));
    const cuda::Event fork;
    const std::array<cuda::Event, 3> joins;
    return seconds_on(in_, [&] {
        in_.record(fork);
        for (int i = 0; i < cut.chunks; ++i) {
            const auto at = static_cast<std::size_t>(i);
            if (i > 0) streams[at]->wait(fork);
            streams[at]->to_device(arrays_.device() + cut.begin(i), arrays_.in(true) + cut.begin(i),
                                   cut.size(i) * sizeof(float), nullptr);
            if (i == 0) continue;
            streams[at]->record(joins[at]);
            in_.wait(joins[at]);
        }
    });
}

// Copies in go to one array while copies out leave another: they share only the link.
void PartsMeter::both_directions(bool keep) {
    const cuda::Event start(true);
    std::vector<cuda::Event> in_ends, out_ends;
    for (int i = 0; i < kPasses; ++i) {
        in_ends.emplace_back(true);
        out_ends.emplace_back(true);
    }
    in_.record(start);
    out_.wait(start);
    for (std::size_t i = 0; i < kPasses; ++i) {
        in_.to_device(arrays_.device(), arrays_.in(true), arrays_.bytes(), nullptr);
        in_.record(in_ends[i]);
        out_.to_host(arrays_.out(true), arrays_.beside(), arrays_.bytes(), nullptr);
        out_.record(out_ends[i]);
    }
    in_.synchronize();
    out_.synchronize();
    if (!keep) return;
    std::vector<double> in, out;
    for (std::size_t i = 0; i < kPasses; ++i) {
        in.push_back(in_ends[i].seconds_since(start));
        out.push_back(out_ends[i].seconds_since(start));
    }
    const double both = std::min(in.back(), out.back());
    duplex_in_.push_back(seconds_a_pass(in, both));
    duplex_out_.push_back(seconds_a_pass(out, both));
    duplex_ = {{"copy in", "copy out"}, {}};
    for (int i = 0; i < kPasses; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double in_begin = i > 0 ? in[at - 1] : 0, out_begin = i > 0 ? out[at - 1] : 0;
        duplex_.bars.push_back({0, i, in_begin, in[at] - in_begin});
        duplex_.bars.push_back({1, i, out_begin, out[at] - out_begin});
    }
}

int PartsMeter::calibrate() {
    std::vector<double> copies;
    for (int i = 0; i < kLinkWarmup + repetitions_; ++i) {
        const double seconds = seconds_of_copy_in();
        if (i >= kLinkWarmup) copies.push_back(seconds);
    }
    const double target = median(copies);
    int iterations = 1024;
    for (int round = 0; round < 4; ++round) {
        std::vector<double> samples;
        for (int i = 0; i < 5; ++i) samples.push_back(seconds_of_compute(iterations));
        const double wanted = iterations * target / median(samples);
        iterations = static_cast<int>(std::clamp(std::round(wanted), 1.0, double{kMostWork}));
    }
    return iterations;
}

void PartsMeter::measure(int iterations) {
    for (int i = 0; i < kLinkWarmup; ++i) both_directions(false);
    for (int i = 0; i < repetitions_; ++i) {
        copy_in_.push_back(seconds_of_copy_in());
        copy_in_streams_.push_back(seconds_of_copy_in_on_streams());
        compute_.push_back(seconds_of_compute(iterations));
        copy_out_.push_back(seconds_of_copy_out());
        both_directions(true);
    }
}

Parts PartsMeter::parts() const {
    return {.copy_in = median(copy_in_),
            .compute = median(compute_),
            .copy_out = median(copy_out_),
            .copy_in_streams = median(copy_in_streams_),
            .duplex_in = median(duplex_in_),
            .duplex_out = median(duplex_out_),
            .duplex = duplex_};
}

}  // namespace mr::streams
