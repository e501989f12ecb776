// How fast this machine's cores multiply and add: the speed of light of a long prompt.
#pragma once

#include "core/thread_pool.h"

namespace mr::observe {

// FLOP/s of all threads of a pool together, on the active instruction path. 0: the path has no such
// instruction.
struct ComputePeak {
    double f32 = 0;   // multiply-adds of floats
    double int8 = 0;  // products of 8-bit integers with their sums
    double bf16 = 0;  // products of bf16 with their sums in f32; no operation here uses them
};

// Each for about `seconds`, at least 20 passes: the best pass. Nothing is read from memory: every
// operand is in a register or in the first cache.
ComputePeak measure_compute_peak(ThreadPool& pool, double seconds = 0.02);

// measure_compute_peak(), once in the life of the process for an instruction path and a number of
// threads.
ComputePeak compute_peak(ThreadPool& pool);

}  // namespace mr::observe
