// The backward of the embedding on the GPU, deterministic: tokens are sorted by id on the device,
// so that the caller need only provide the ids, and each row of the table gets its tokens'
// gradients added in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

// dtable[ids[t], :] += dx[t, :]. f32: dtable [rows, dim], dx [tokens, dim]; ids [tokens] in device
// memory, those outside of the table are ignored. A row's tokens are added in order, in pieces
// whose bounds depend on the ids alone. Scratch: embedding_backward_scratch_bytes().
void embedding_backward(const Context& ctx, Tensor dtable, Tensor dx, const std::int32_t* ids);
std::size_t embedding_backward_scratch_bytes(std::int64_t tokens, std::int64_t dim);

// dtable[t % seq, :] += dx[t, :]: learned positions of consecutive sequences of equal length, added
// in order. f32: dtable [at least seq, dim], dx [sequences * seq, dim].
void positions_backward(const Context& ctx, Tensor dtable, Tensor dx, std::int64_t seq);

}  // namespace mr::cuda
