// Reads rows of tables on the GPU.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/batch/batch.h"

namespace mr::cuda {

// out[t] = table[ids[t]] + positions_table[positions[t]], ids and positions of the batch. out f32
// [tokens, dim]. Tables [rows, dim] f32, f16, bf16, q8_0, q4_0, or q8_0x8 and q4_0x8
// (ops/linear/tile_layout.h); positions_table may be none. An id or position outside of its table
// gives a row of NaN.
void embedding(const Context& ctx, Tensor out, Tensor table, Tensor positions_table,
               const ops::DeviceBatch& batch);

// out[i] = x[rows[i]], i < count: out [count, cols] and x [any, cols] of one type, f32, f16 or
// bf16; `rows` in device memory. A row outside of x gives NaN.
void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows,
                 std::int64_t count);

}  // namespace mr::cuda
