#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// dtable[ids[t], :] += dx[t, :], in the order of t, for any number of threads. f32: dtable [rows,
// dim], dx [tokens, dim]; ids in [0, rows).
void embedding_backward(const Context& ctx, Tensor dtable, Tensor dx,
                        std::span<const std::int32_t> ids);

}  // namespace mr::ops
