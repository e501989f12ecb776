// Converts between floats and the storage types of weights (GGUF's block layouts).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace mr::ops {

// Floating point and every quantised type; not the integers.
bool can_dequantize(DType type);
// f32, f16, bf16, q8_0 and q4_0.
bool can_quantize(DType type);

// `count` elements, a whole number of blocks. `src` need not be aligned.
void dequantize(DType type, const void* src, float* dst, std::int64_t count);

// Rounds exactly as llama.cpp does, so that its files and ours agree bit for bit. A block with an
// infinity or a NaN becomes all NaN, so that it is found rather than hidden.
// `dst` need not be aligned.
void quantize(DType type, const float* src, void* dst, std::int64_t count);

// Whether a finite number stays finite in this type (can_quantize): f16 ends at 65504, and the
// scale of a block is f16. Values that are not finite count as held.
bool can_hold(DType type, float value);

}  // namespace mr::ops
