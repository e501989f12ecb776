// How fast the GPU's memory and its link to the host are: the ceilings of all work on it.
#pragma once

#include <cstddef>
#include <string>

#include "core/thread_pool.h"
#include "observe/roofline.h"
#include "observe/run_report.h"

namespace mr::observe {

// Measures the GPU: a sum over a buffer of `bytes` (its result is checked, so every byte was read),
// a copy within the device, and copies from and to pinned host memory; the best of several passes
// each. Uses the free memory if that is less. Throws Error (device) if there is no GPU; a ceiling
// whose buffer does not fit is 0.
Ceilings measure_device(std::size_t bytes = std::size_t{4} << 30);

// measure_device(), once per process. Call it before a large model fills the device, or while
// nothing runs there.
const Ceilings& device_ceilings();

// The ceilings of where a run computes: those of the GPU, or what the threads of the pool read in
// about `seconds`. `compute`: and what they compute, which takes 60 ms the first time. `quick`: a
// CPU reads at most kQuickLookBytes, which large caches hold.
Ceilings ceilings_of(bool gpu, ThreadPool& pool, double seconds, bool compute = false,
                     bool quick = false);
// The machine and its last-level cache, or the GPU and its L2.
RunPlace place_of(bool gpu);
// "cpu", or the name of the GPU.
std::string device_name(bool gpu);

}  // namespace mr::observe
