// The interface between compute_peak.cpp and its kernels (one set per instruction path).
#pragma once

#include <cstdint>

#include "core/isa_dispatch.h"

namespace mr::observe {

// Each runs `rounds` rounds of independent multiply-adds on registers alone, as fast as the path's
// own instructions go, and returns how many FLOPs that were; 0: the path has no such instruction.
MR_KERNEL(std::int64_t, peak_f32, (std::int64_t rounds))
// Products of 8-bit integers, summed up in more bits. A product and its addition are two FLOPs.
MR_KERNEL(std::int64_t, peak_int8, (std::int64_t rounds))
// Products of bf16, summed up in f32.
MR_KERNEL(std::int64_t, peak_bf16, (std::int64_t rounds))

}  // namespace mr::observe
