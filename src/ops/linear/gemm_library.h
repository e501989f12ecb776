// The library for prompt GEMMs on the GPU, if it is installed.
#pragma once

#include <string>

namespace mr::cuda {

struct GemmLibrary {
    bool found = false;
    std::string about;  // "cuBLASLt 13.1.0", or why it is missing
};
// Opens the library at the first call; needs a GPU.
GemmLibrary gemm_library();

}  // namespace mr::cuda
