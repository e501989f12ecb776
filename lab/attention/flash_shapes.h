// The shapes of `millrace-lab attention` for plain tensors, and their notation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/attention/flash_measure.h"

namespace mr::cli {

// BATCH:TOKENS:HEADS:KV_HEADS:HEAD_DIM:MASK[:TYPE], the same as for bench/peers/torch_attention.py.
// TOKENS of a packed batch are its lengths, 300+700+24, and BATCH is 1. MASK is full, causal,
// block-causal/BLOCK or window/WINDOW[/SINKS], which is causal; the default TYPE is bf16. Throws
// Error (usage) for --shape.
cuda::FlashShape flash_shape(std::string_view text);
std::string shape_text(const cuda::FlashShape& shape);
// The parts that have more than one form, in the notation above.
std::string mask_text(const ops::AttentionMask& mask);
std::string tokens_text(const cuda::FlashShape& shape);

// 16,384 tokens in all, heads of 128 and 64, for every length; empty: the lengths of the targets.
std::vector<cuda::FlashShape> target_shapes(std::vector<int> lengths);
// Other shapes of models: other head sizes, grouped heads, packed batches, f16, other masks.
std::vector<cuda::FlashShape> wide_shapes();

}  // namespace mr::cli
