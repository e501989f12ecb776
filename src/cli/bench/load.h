// millrace bench load --device cuda.
#pragma once

#include "cli/options.h"
#include "model/cuda/device_weights.h"

namespace mr::cli {

// File to device, against what pinned copies reach in the same run. The driver's own start is not
// part of it.
int device_load_bench(const SharedOptions& shared, const model::DeviceLoadOptions& how);

}  // namespace mr::cli
