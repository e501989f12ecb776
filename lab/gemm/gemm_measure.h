// Speed of the GEMM for many tokens on this GPU, on random data (whose bits cost power and so time;
// zeros would be too fast).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace mr::cuda {

struct GemmCase {
    std::string name;
    std::int64_t n = 0, k = 0;
    bool residual = false;  // out f32 += ..., as for a residual stream; else out has x's type
};

// The four GEMMs of a Llama-2-7B layer, as the engine joins them.
std::vector<GemmCase> llama_2_7b_products();

struct GemmMeasureOptions {
    std::vector<GemmCase> cases = llama_2_7b_products();
    std::vector<DType> types = {DType::bf16, DType::q8_0x8, DType::q4_0x8};
    std::int64_t tokens = 2048;
    int candidates = 8;  // algorithms of the library to compare the chosen one with
    bool own = true;     // also time our own kernels
};

struct GemmMeasured {
    GemmCase shape;
    DType type = DType::bf16;  // of the weights
    std::int64_t tokens = 0;
    std::string about;              // which kernel or library
    double seconds = 0;             // in all
    double dequantize_seconds = 0;  // only expanding the weights; 0 if not needed
    double product_seconds = 0;     // without the expansion
    double own_seconds = 0;         // with our own kernels; 0: not measured
    double best_seconds = 0;        // with the fastest algorithm compared
    int best = 0;                   // its index; 0 is the one in use
    std::string best_about;

    double flops() const {
        return 2.0 * static_cast<double>(tokens) * static_cast<double>(shape.n) *
               static_cast<double>(shape.k);
    }
};

struct GemmReport {
    std::vector<GemmMeasured> products;
    double ceiling = 0;  // FLOP/s of a bf16 GEMM 8192 x 8192 x 8192 in the same run
};

// Error (device) if there is no GPU.
GemmReport measure_gemm(const GemmMeasureOptions& options);

}  // namespace mr::cuda
