// The interface between linear.cpp and its kernels (one set per instruction path, simd/dispatch.h).
//
// Quantised weights, on every path, for one output and block b = 0, 1, ... of 32 elements:
//   isum = sum of w[i] * q[i]                    exact in int32
//   acc  = fma(float(isum) * d, scale, acc)      f32; d of the activations, scale of the weights
// so the bits are the same on every path. An activation block holds q = round(x / d), ties to even,
// d = absmax / 127 rounded to 22 significant bits: then 1.5 * 2^23 * d is exact, which lets kernels
// compute float(isum) * d from isum by one fma. A block with |x| >= 2^100, an infinity or a NaN has
// d = NaN and makes its token's outputs NaN; one whose d would be subnormal counts as zero.
//
// Float weights: W lanes, lane j sums elements j, j + W, ... in order; then a fixed tree. W, and
// whether products are fused, depend on the path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {

enum class WeightKind : std::uint8_t { f32, f16, bf16, q8_0, q4_0, q8_0x4, q4_0x4 };

struct LinearJob {
    WeightKind kind = WeightKind::f32;
    const unsigned char* w = nullptr;  // [n] rows of row_bytes, unaligned
    std::size_t row_bytes = 0;
    std::int64_t n = 0, k = 0, tokens = 0;
    const float* x = nullptr;         // [tokens, k]
    const void* xq = nullptr;         // x quantised by linear_quantise; for quantised weights
    float* out = nullptr;             // [tokens, n]
    const float* bias = nullptr;      // [n] or none
    const float* residual = nullptr;  // [tokens, n] or none; may be out
};

// Upper bounds on the scratch of all paths.
inline constexpr std::int64_t kTokenGroup = 16;          // tokens are padded to this
inline constexpr std::int64_t kQuantBlockBytes = 48;     // per token and block of 32
inline constexpr std::int64_t kPackBytesPerColumn = 64;  // per thread and element of k

// Quantises tokens [begin, end); both are multiples of kTokenGroup, but end may be `tokens`.
MR_KERNEL(void, linear_quantise,
          (void* xq, const float* x, std::int64_t k, std::int64_t tokens, std::int64_t begin,
           std::int64_t end))
// Outputs [begin, end) of all tokens. pack: kPackBytesPerColumn * k bytes, 64-byte aligned.
MR_KERNEL(void, linear_rows,
          (const LinearJob& job, std::int64_t begin, std::int64_t end, void* pack))

}  // namespace mr::ops
