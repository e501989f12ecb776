// millrace bench load --device cuda.
#pragma once

#include "cli/options.h"
#include "model/cuda/device_weights.h"

namespace mr::cli {

// File to device, compared with pinned copies in the same run. The driver's start-up time is not
// included.
int device_load_bench(const SharedOptions& shared, const model::DeviceLoadOptions& how);

}  // namespace mr::cli
