// What a build without CUDA has in place of attention_measure.cu.
#ifndef MR_CUDA
#include "bench/ops/attention_measure.h"

namespace mr::cuda {

AttentionMeasured measure_attention(const AttentionShape&, const std::vector<int>&,
                                    const std::vector<int>&) {
    AttentionMeasured out;
    out.device = require_device();  // throws: there is none
    return out;
}

}  // namespace mr::cuda
#endif
