// A link between stages as a run uses it.
#pragma once

#include <memory>
#include <vector>

#include "core/comm/comm.h"
#include "model/train/stage_link.h"

namespace mr::train {

class TimedLink : public model::StageLink {
  public:
    // The passes of a step begin: what was waited for before is not theirs.
    virtual void begin() {}
    // Until all stages are here: with nothing on its way.
    virtual void meet() = 0;
    // So far, up to the last meet(): how long this stage had to wait for others.
    virtual double waited_seconds() const = 0;
};

// Stages whose tensors lie on GPUs. ranks: of `comm`, which outlives it, by stage; all of them call
// it. Channels from `first` on, kDeviceLinkChannels of them, are its own. Throws Error (device),
// LostRank.
inline constexpr int kDeviceLinkChannels = 6;
std::unique_ptr<TimedLink> make_device_stage_link(comm::Comm& comm, const std::vector<int>& ranks,
                                                  int first);

}  // namespace mr::train
