// The time of each stage of a step, measured by the kernels themselves: every kernel stamps the
// device's clock when its first block begins and when its last block ends. The stamps cost no
// launch and no copy, and they see the step as it really runs, replayed from a graph with launches
// overlapping.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/ledger.h"

namespace mr::cuda {

struct Stamp {
    unsigned long long begin, end;  // ns on the device's clock
};

// One kernel of a step; its begin counts from the begin of the step's first stage.
using mr::Stage;

class Timeline {
  public:
    explicit Timeline(std::size_t most_stages);

    // The stamp of a kernel that is about to be launched. The order of calls is the order of
    // stages.
    Stamp* add(OpKind kind, const char* name, int layer, const OpRecord& work);
    void clear_stages() { stages_.clear(); }
    // Resets the stamps for a run, on the stream.
    void reset(const Stream& stream);
    // After the stream has finished: the stages with their times.
    std::vector<Stage> read(const Stream& stream) const;
    std::size_t size() const { return stages_.size(); }

  private:
    DeviceArena memory_;
    Stamp* stamps_ = nullptr;
    std::size_t most_;
    std::vector<Stage> stages_;
};

}  // namespace mr::cuda
