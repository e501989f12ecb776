// Runs a schedule on the device.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/timeline.h"
#include "lab/streams/arrays.h"
#include "lab/streams/schedule.h"
#include "lab/streams/streams.h"

namespace mr::streams {

class Runner {
  public:
    // `stamped`: for timeline(). Stamps cost time, so do not measure with such a runner.
    Runner(Arrays& arrays, const Schedule& schedule, int iterations, bool stamped = false);

    // Host seconds from the first call to the end of the last copy.
    double run();
    // Of the second of two runs.
    Timeline timeline();

  private:
    void capture();
    void issue();
    void issue(std::size_t i);
    void synchronize() const;
    void clear_stamps();

    Arrays& arrays_;
    Schedule schedule_;
    int iterations_;
    std::vector<std::unique_ptr<cuda::Stream>> streams_;
    std::vector<std::optional<cuda::Event>> done_;  // for ops that others wait for
    cuda::Event fork_;
    std::vector<cuda::Event> joins_;  // one per stream
    cuda::Graph graph_;
    struct Stamps {
        std::vector<cuda::Event> begin, end;  // one per op, for copies
        cuda::DeviceArena memory;
        cuda::Stamp* of_ops = nullptr;  // one per op, for kernels; the last one is for the clock
    };
    std::optional<Stamps> stamps_;
};

}  // namespace mr::streams
