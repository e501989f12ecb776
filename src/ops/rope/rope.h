#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// Which two elements of a head are rotated together.
enum class RopeStyle {
    half,         // (i, i + rotary/2): Hugging Face, GPT-NeoX, Qwen
    interleaved,  // (2i, 2i + 1): llama2.c, GGUF's llama
};

// cos_sin[t, i] = (cos, sin)(positions[t] * inv_freq[i]) * magnitude.
// cos_sin f32 [tokens, rotary/2, 2]; angles in f64, so that far positions keep their precision.
void rope_table(const Context& ctx, Tensor cos_sin, std::span<const std::int32_t> positions,
                std::span<const double> inv_freq, double magnitude);

// Rotates the first `rotary` elements of every head in place. x f32 [tokens, heads, head_dim],
// rotary = 2 * cos_sin.dim(1) <= head_dim.
void rope(const Context& ctx, Tensor x, Tensor cos_sin, RopeStyle style);

}  // namespace mr::ops
