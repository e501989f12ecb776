// How fast the GPU multiplies matrices when no operand has to be fetched from memory.
#pragma once

#include "core/cuda/device.h"

namespace mr::observe {

// FLOP/s of bf16 matrix instructions (f16 where there is no bf16) accumulating in f32, operands in
// registers and shared memory: warp-group instructions on sm_90a, warp instructions elsewhere. A
// real product reaches less of it: its operands come from memory and it runs into the power limit.
double measure_matrix_peak(const cuda::Stream& stream, int multiprocessors);

}  // namespace mr::observe
