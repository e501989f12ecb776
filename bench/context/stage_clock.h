// Tells the forward of a step from the upkeep behind it: by events on the GPU's stream, which do
// not wait for it, or by the host's clock.
#pragma once

#include <memory>

#include "core/context.h"

namespace mr::context {

class StageClock {
  public:
    static std::unique_ptr<StageClock> make(const Context& ctx);
    virtual ~StageClock() = default;

    // For every step, one after the other.
    virtual void begin() = 0;
    virtual void forward_ended() = 0;
    virtual void upkeep_ended() = 0;
    // What was measured so far counts, or does not; both wait for it.
    virtual void finish() = 0;
    void forget() {
        finish();
        forward_ = upkeep_ = 0;
    }
    double forward() const { return forward_; }  // seconds of all steps
    double upkeep() const { return upkeep_; }

  protected:
    double forward_ = 0, upkeep_ = 0;
};

}  // namespace mr::context
