// Writes the parameters of rows on the device: a draw for tensors of other programs then needs
// nothing from host memory, and can be captured.
#pragma once

#include <cstdint>

#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

// rows[i] = all, with seed all.seed + i; or, if `seeds` or `positions` (int64 [rows] in device
// memory) are given, with those.
struct SampleRowsPass {
    SampleRow all;
    const std::int64_t* seeds = nullptr;
    const std::int64_t* positions = nullptr;
    SampleRow* rows = nullptr;
    int count = 0;
};
void set_sample_rows(const Context& ctx, const SampleRowsPass& pass);

}  // namespace mr::cuda
