// Which of cuBLASLt's algorithms may serve fewer tokens than the one that defines a product's bits.
#pragma once

#include "core/context.h"
#include "ops/linear/gemm_cublaslt.h"

namespace mr::cuda {

// Finds an algorithm for each of cublaslt::kSteps that gives, on random numbers, the bits of
// cublaslt::algorithm(key), and adopts it. Once per key; only f16 and bf16; not while a stream is
// captured. Uses cublaslt::kWorkspace bytes of ctx.scratch and waits for the device.
void search_steps(const Context& ctx, const cublaslt::Key& key);

}  // namespace mr::cuda
