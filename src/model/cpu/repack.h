// Repacks weights once, after loading, into the layout that this machine's kernels read fastest.
#pragma once

#include "core/progress.h"
#include "model/model.h"

namespace mr::model {

// Replaces every matrix that ops::linear() reads faster in another layout (ops/linear/linear.h) by
// a copy in that layout, one matrix at a time, and frees the original's memory: resident memory
// stays about the size of the weights. The embedding table stays as it is. Results keep their
// bits.
void repack_weights(Model& model, int threads, const Progress& progress = {});
// Types and bytes of the weights as after repack_weights(), for a planned model (planned_model()):
// nothing is read, and the replaced tensors have no memory.
void plan_repack(Model& model);

}  // namespace mr::model
