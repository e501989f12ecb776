// An exchange of gradients as a run uses it.
#pragma once

#include <string>

#include "model/train/grad_exchange.h"

namespace mr::train {

class TimedExchange : public model::GradExchange {
  public:
    // So far: what its thread worked, and how long it was waited for.
    virtual double busy_seconds() const = 0;
    virtual double waited_seconds() const = 0;
    virtual std::string about() const { return ""; }  // how data travels; empty: as everywhere
};

}  // namespace mr::train
