// Stand-in for attention_measure.cu in a build without CUDA.
#ifndef MR_CUDA
#include "lab/attention/attention_measure.h"

namespace mr::cuda {

AttentionMeasured measure_attention(const AttentionShape&, const std::vector<int>&,
                                    const std::vector<int>&) {
    AttentionMeasured out;
    out.device = require_device();  // throws: there is no GPU
    return out;
}

}  // namespace mr::cuda
#endif
