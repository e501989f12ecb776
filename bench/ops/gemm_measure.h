// How fast the product for many tokens is on this GPU, on random data (whose bits cost power and
// so time; zeros would flatter).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace mr::cuda {

struct GemmCase {
    std::string name;
    std::int64_t n = 0, k = 0;
    bool residual = false;  // out f32 += ..., as before a residual stream; else out of x's type
};

// The four products of a Llama-2-7B layer, as the engine joins them.
std::vector<GemmCase> llama_2_7b_products();

struct GemmMeasureOptions {
    std::vector<GemmCase> cases = llama_2_7b_products();
    std::vector<DType> types = {DType::bf16, DType::q8_0x8, DType::q4_0x8};
    std::int64_t tokens = 2048;
    int candidates = 8;  // algorithms of the library to compare the chosen one with
    bool own = true;     // also time the own kernels
};

struct GemmMeasured {
    GemmCase shape;
    DType type = DType::bf16;  // of the weights
    std::int64_t tokens = 0;
    std::string about;   // who computed it
    double seconds = 0;  // all of it
    double dequantize_seconds =
        0;                       // writing the weights out, alone; 0 where there is nothing to do
    double product_seconds = 0;  // without that
    double own_seconds = 0;      // the product by the own kernels; 0: not asked for
    double best_seconds = 0;     // the product by the fastest algorithm of those compared
    int best = 0;                // which one: 0 is the one in use
    std::string best_about;

    double flops() const {
        return 2.0 * static_cast<double>(tokens) * static_cast<double>(shape.n) *
               static_cast<double>(shape.k);
    }
};

struct GemmReport {
    std::vector<GemmMeasured> products;
    double ceiling = 0;  // FLOP/s of a bf16 product 8192 x 8192 x 8192, taken in the same run
};

// Error (device) where there is no GPU.
GemmReport measure_gemm(const GemmMeasureOptions& options);

}  // namespace mr::cuda
