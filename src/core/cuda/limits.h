// A smaller GPU than the one at hand, for tests: what a block and the device may have is lowered,
// and everything that asks for more fails as it would on the smaller GPU.
#pragma once

#include <cstddef>
#include <string_view>

namespace mr::cuda {

struct Limits {
    std::size_t shared_per_block = 0;  // most a block may ask for, bytes
    int multiprocessors = 0;
};

// `gpu`, lowered by `wish`: the value of MILLRACE_GPU_LIMITS, such as
// "shared=65536,multiprocessors=40". A value above the GPU's own changes nothing.
Limits lowered(Limits gpu, std::string_view wish);

}  // namespace mr::cuda
