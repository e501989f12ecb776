// Calibration: a step measured by `bench train --json`, beside the plan's prediction.
#pragma once

#include <string>
#include <string_view>

#include "train/plan/cost.h"

namespace mr::plan {

struct Measured {
    std::string model, device;  // as named by the bench
    int batch = 0, seq = 0, accumulate = 1;
    Recompute recompute = Recompute::none;
    bool bf16_masters = false;
    double step_seconds = 0;
};
// Throws Error (input) naming `file` for anything but the output of `bench train --json` for the
// next-token objective on a GPU.
Measured read_measured(std::string_view json, const std::string& file);

// Measured time / planned time of the step; `spec` is that of measured.model.
double pace_of(const Measured& measured, const ModelSpec& spec, const DeviceSpec& device);

// The remaining uncertainty of computation: one shape was measured, others are planned.
inline constexpr double kMeasuredUncertainty = 0.10;

}  // namespace mr::plan
