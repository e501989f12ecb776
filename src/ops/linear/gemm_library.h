// The library that multiplies prompts on the GPU, where it is installed.
#pragma once

#include <string>

namespace mr::cuda {

struct GemmLibrary {
    bool found = false;
    std::string about;  // "cuBLASLt 13.1.0", or why there is none
};
// Opens it at the first call; needs a GPU.
GemmLibrary gemm_library();

}  // namespace mr::cuda
