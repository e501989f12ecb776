// The cuBLASLt functions in use, from a library that is opened at first use. Only for files that
// nvcc compiles; without cublasLt.h this header is empty.
#pragma once

#if __has_include(<cublasLt.h>)
#define MR_HAS_CUBLASLT 1
#include <cublasLt.h>

#include <string>

#include "core/dtype.h"

namespace mr::cuda::cublaslt {

// The functions in use, by their names in the library.
#define MR_CUBLASLT_FUNCTIONS(F)            \
    F(cublasLtCreate)                       \
    F(cublasLtGetVersion)                   \
    F(cublasLtGetStatusString)              \
    F(cublasLtMatmul)                       \
    F(cublasLtMatmulDescCreate)             \
    F(cublasLtMatmulDescDestroy)            \
    F(cublasLtMatmulDescSetAttribute)       \
    F(cublasLtMatrixLayoutCreate)           \
    F(cublasLtMatrixLayoutDestroy)          \
    F(cublasLtMatmulPreferenceCreate)       \
    F(cublasLtMatmulPreferenceDestroy)      \
    F(cublasLtMatmulPreferenceSetAttribute) \
    F(cublasLtMatmulAlgoGetHeuristic)       \
    F(cublasLtMatmulAlgoCheck)              \
    F(cublasLtMatmulAlgoCapGetAttribute)    \
    F(cublasLtMatmulAlgoConfigGetAttribute)

struct Library {
#define MR_MEMBER(name) decltype(&::name) name = nullptr;
    MR_CUBLASLT_FUNCTIONS(MR_MEMBER)
#undef MR_MEMBER
    cublasLtHandle_t handle = nullptr;
    std::string about;  // name and version, or why it is missing

    explicit operator bool() const { return handle != nullptr; }
};

// Opened once and never closed: it lives as long as the device's context.
const Library& library();
// Throws Error (device) with the library's message unless `status` is success.
void check(cublasStatus_t status, const char* what);
cudaDataType_t data_type(DType type);  // f32, f16 or bf16

}  // namespace mr::cuda::cublaslt

#endif
