// Time of norm + residual on the GPU, compared with its memory bandwidth.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "ops/norm/kind.h"

namespace mr::cuda {

struct NormMeasured {
    std::int64_t tokens = 0;
    double graph_seconds = 0;     // per call in a graph of many, with overlapping launches
    double launched_seconds = 0;  // per call of many launched from the host
    std::uint64_t bytes = 0;      // x and residual read, out written
    double floor_seconds = 0;     // the same bytes at the measured bandwidth
};

struct NormMeasurement {
    std::string device;
    double bytes_per_second = 0;  // of a kernel that reads two arrays and writes one
    std::vector<NormMeasured> sizes;
};

// out = norm(x + residual) for every number of tokens; x, residual and out of `type`, weights (and
// biases for layer) f32. `many_rows` off: without the kernel for many rows. Error (device) if there
// is no GPU.
NormMeasurement measure_norm(std::int64_t hidden, std::span<const std::int64_t> tokens, DType type,
                             ops::NormKind kind, bool many_rows = true);

}  // namespace mr::cuda
