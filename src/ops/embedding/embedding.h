#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// out[t, :] = table[ids[t], :], or += if `accumulate` (learned positions). out f32 [tokens, dim];
// table [vocab, dim] f32, f16, bf16, q8_0 or q4_0; ids in [0, vocab).
void embedding(const Context& ctx, Tensor out, Tensor table, std::span<const std::int32_t> ids,
               bool accumulate = false);

}  // namespace mr::ops
