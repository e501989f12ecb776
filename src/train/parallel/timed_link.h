// A link between stages with the times that a run reports.
#pragma once

#include <memory>
#include <vector>

#include "core/comm/comm.h"
#include "model/train/stage_link.h"

namespace mr::train {

class TimedLink : public model::StageLink {
  public:
    // The passes of a step begin: earlier waiting time does not count.
    virtual void begin() {}
    // Waits until all stages are here, with nothing in flight.
    virtual void meet() = 0;
    // Total up to the last meet(): time this stage waited for others.
    virtual double waited_seconds() const = 0;
};

// A link for stages whose tensors lie on GPUs. ranks: of `comm`, which must outlive it, by stage;
// all of them call this. It owns kDeviceLinkChannels channels from `first` on. Throws Error
// (device), LostRank.
inline constexpr int kDeviceLinkChannels = 6;
std::unique_ptr<TimedLink> make_device_stage_link(comm::Comm& comm, const std::vector<int>& ranks,
                                                  int first);

}  // namespace mr::train
