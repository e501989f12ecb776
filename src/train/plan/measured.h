// Calibration: a step that `bench train --json` measured, beside what the plan says of it.
#pragma once

#include <string>
#include <string_view>

#include "train/plan/cost.h"

namespace mr::plan {

struct Measured {
    std::string model, device;  // as the bench named them
    int batch = 0, seq = 0, accumulate = 1;
    Recompute recompute = Recompute::none;
    bool bf16_masters = false;
    double step_seconds = 0;
};
// Throws Error (input) naming `file` for anything but what `bench train --json` wrote of the next
// token's objective on a GPU.
Measured read_measured(std::string_view json, const std::string& file);

// How many times as long as the plan says the step took; `spec` is that of measured.model.
double pace_of(const Measured& measured, const ModelSpec& spec, const DeviceSpec& device);

// What is left of the uncertainty of computing: one shape was measured, others are planned.
inline constexpr double kMeasuredUncertainty = 0.10;

}  // namespace mr::plan
