// Weights rearranged once, after loading, into what this machine's kernels read fastest.
#pragma once

#include "core/progress.h"
#include "model/model.h"

namespace mr::model {

// Replaces every matrix that ops::linear() reads faster in another layout (ops/linear/linear.h) by
// a copy in that layout, matrix by matrix, and gives the memory of the original back: what is
// resident stays about the size of the weights. The embedding table stays as it is. Results keep
// their bits.
void repack_weights(Model& model, int threads, const Progress& progress = {});

}  // namespace mr::model
