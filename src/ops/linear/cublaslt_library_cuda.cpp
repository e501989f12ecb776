#include "ops/linear/cublaslt_library.cuh"

#ifdef MR_HAS_CUBLASLT
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/shared_library.h"

namespace mr::cuda::cublaslt {
namespace {

// Names without a folder are found by the dynamic loader (LD_LIBRARY_PATH, ld.so.conf).
std::vector<std::string> file_names() {
    std::vector<std::string> folders = {""};
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const char* home = std::getenv(name); home && *home) {
            folders.push_back(std::string(home) + "/lib64/");
            folders.push_back(std::string(home) + "/lib/");
        }
    }
    folders.emplace_back("/usr/local/cuda/lib64/");
    folders.emplace_back("/usr/local/cuda/lib/");
    std::vector<std::string> names;
    for (const std::string& folder : folders) {
        for (const char* suffix : {".13", ".12", ""}) {
            names.push_back(folder + "libcublasLt.so" + suffix);
        }
    }
    return names;
}

Library open_library() {
    Library lib;
    const auto [file, why] = open_shared_library("cuBLASLt", "MILLRACE_CUBLASLT", file_names());
    if (!file) {
        lib.about = why;
        return lib;
    }
    std::string missing;
#define MR_LOAD(name) find_function(file, #name, lib.name, missing);
    MR_CUBLASLT_FUNCTIONS(MR_LOAD)
#undef MR_LOAD
    if (!missing.empty()) {
        lib.about = "this cuBLASLt lacks " + missing;
        return lib;
    }
    const cublasStatus_t status = lib.cublasLtCreate(&lib.handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        lib.handle = nullptr;
        lib.about = std::string("cuBLASLt does not start: ") + lib.cublasLtGetStatusString(status);
        return lib;
    }
    const std::size_t version = lib.cublasLtGetVersion();  // 130101 is 13.1.1
    lib.about = "cuBLASLt " + std::to_string(version / 10000) + "." +
                std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
    return lib;
}

}  // namespace

const Library& library() {
    static const Library lib = open_library();
    return lib;
}

void check(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
        return;
    throw Error::device({.field = "cuBLASLt",
                         .value = what,
                         .problem = library().cublasLtGetStatusString(status),
                         .remedy = "set MILLRACE_CUBLASLT=off to go without it, and report it"});
}

cudaDataType_t data_type(DType type) {
    switch (type) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::f16:
            return CUDA_R_16F;
        case DType::bf16:
            return CUDA_R_16BF;
        default:
            MR_CHECK(false, "the type is f32, f16 or bf16");
    }
}

}  // namespace mr::cuda::cublaslt
#endif
