// Times the forward of a step and the upkeep after it separately: by events on the GPU's stream,
// without waiting, or by the host's clock.
#pragma once

#include <memory>

#include "core/context.h"

namespace mr::context {

class StageClock {
  public:
    static std::unique_ptr<StageClock> make(const Context& ctx);
    virtual ~StageClock() = default;

    // Called in this order for every step.
    virtual void begin() = 0;
    virtual void forward_ended() = 0;
    virtual void upkeep_ended() = 0;
    // Counts the measurements so far, or drops them; both wait.
    virtual void finish() = 0;
    void forget() {
        finish();
        forward_ = upkeep_ = 0;
    }
    double forward() const { return forward_; }  // seconds over all steps
    double upkeep() const { return upkeep_; }

  protected:
    double forward_ = 0, upkeep_ = 0;
};

}  // namespace mr::context
