// An exchange of gradients with the times that a run reports.
#pragma once

#include <string>

#include "model/train/grad_exchange.h"

namespace mr::train {

class TimedExchange : public model::GradExchange {
  public:
    // So far: time its thread worked, and time spent waiting for it.
    virtual double busy_seconds() const = 0;
    virtual double waited_seconds() const = 0;
    virtual std::string about() const { return ""; }  // how data travels; empty: the default
};

}  // namespace mr::train
