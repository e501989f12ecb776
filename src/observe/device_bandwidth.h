// How fast the GPU's memory and the way to it are: the ceilings of everything that runs on it.
#pragma once

#include <cstddef>
#include <string>

#include "core/thread_pool.h"
#include "observe/roofline.h"
#include "observe/run_report.h"

namespace mr::observe {

// Measures the GPU: a sum over a buffer of `bytes` (its result is checked, so every byte was read),
// a copy within the device, and copies from and to pinned host memory; the best of several passes
// each. Takes what is free where that is less. Throws Error (device) where there is no GPU; a
// ceiling for which there is no room is 0.
Ceilings measure_device(std::size_t bytes = std::size_t{4} << 30);

// measure_device(), once in the life of the process. Call it before a large model fills the
// device, or while nothing runs there.
const Ceilings& device_ceilings();

// The ceilings of where a run computes: those of the GPU, or what the threads of the pool read in
// about `seconds`.
Ceilings ceilings_of(bool gpu, ThreadPool& pool, double seconds);
// The machine and its last-level cache, or the GPU and its L2.
RunPlace place_of(bool gpu);
// "cpu", or the name of the GPU.
std::string device_name(bool gpu);

}  // namespace mr::observe
