#include "ops/linear/gemm_library.h"

#ifdef MR_CUDA
#include "ops/linear/gemm_cublaslt.h"
#endif

namespace mr::cuda {

#ifdef MR_CUDA
GemmLibrary gemm_library() { return {cublaslt::available(), cublaslt::about()}; }
#else
GemmLibrary gemm_library() { return {false, "this build has no CUDA engine"}; }
#endif

}  // namespace mr::cuda
