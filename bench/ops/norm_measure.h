// How long norm + residual takes on the GPU, beside what memory allows.
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
    double graph_seconds = 0;     // of one call among many in a graph, launches overlapping
    double launched_seconds = 0;  // of one call among many launched from the host
    std::uint64_t bytes = 0;      // x and residual read, out written
    double floor_seconds = 0;     // those bytes at the bandwidth measured beside it
};

struct NormMeasurement {
    std::string device;
    double bytes_per_second = 0;  // of a kernel that reads two arrays and writes one
    std::vector<NormMeasured> sizes;
};

// out = norm(x + residual) for every number of tokens; x, residual and out of `type`, weights (and
// biases for layer) f32. `many_rows` off: without the kernel for many rows. Error (device) where
// there is no GPU.
NormMeasurement measure_norm(std::int64_t hidden, std::span<const std::int64_t> tokens, DType type,
                             ops::NormKind kind, bool many_rows = true);

}  // namespace mr::cuda
