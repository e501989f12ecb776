// A model with its matrices in another type: every rung has the same weights, up to the precision
// of its type.
#pragma once

#include <memory>

#include "core/thread_pool.h"
#include "model/model.h"

namespace mr::ladder {

using ModelPtr = std::shared_ptr<const model::Model>;

// Bytes of such a model's weights.
std::uint64_t bytes_as(const model::Model& model, DType type);
// A copy with the matrices in `type` (f16 where a row is not a whole number of blocks).
ModelPtr as_type(const model::Model& model, DType type, ThreadPool& pool);
// Whether all weights have the same bits: two models of one shape and type.
bool same_weights(const model::Model& a, const model::Model& b);

}  // namespace mr::ladder
