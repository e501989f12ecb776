// Speed and memory of attention on plain tensors on the GPU, forward and backward; fused and, for
// comparison, with the score matrix in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/dtype.h"
#include "ops/attention/mask.h"

namespace mr::cuda {

struct FlashShape {
    int batch = 1, tokens = 2048;  // sequences, with this many queries and keys each
    int heads = 16, kv_heads = 16, head_dim = 128;
    ops::AttentionMask mask;
    DType dtype = DType::bf16;
    std::vector<int> lengths = {};  // of a packed batch's sequences, instead of batch and tokens

    int sequences() const { return lengths.empty() ? batch : static_cast<int>(lengths.size()); }
    int longest() const;
    std::int64_t all_tokens() const;
    // The usual count: two products over all pairs, half of them if causal, fewer with other masks;
    // the backward is five products.
    double forward_flops() const;
    double backward_flops() const { return 2.5 * forward_flops(); }
};

struct FlashMeasured {
    double forward = 0, backward = 0;  // seconds per call, in a graph; backward 0: not measured
    double together = 0;               // a forward followed by a backward; 0: not measured
    std::size_t tensors = 0;           // bytes of q, k, v, out and their gradients
    std::size_t extra = 0;             // additional bytes: log-sum-exp and scratch, or the matrices
};

// Error (device) without a GPU, OutOfMemory if memory is too small. A backward only for supported
// heads (kFlashBackwardMaxDim). between(): called after every round, to measure something else in
// turn.
FlashMeasured measure_flash(const FlashShape& shape, bool backward, bool together = false,
                            const std::function<void()>& between = {});
// One sequence and one head, causal, no window.
FlashMeasured measure_unfused(const FlashShape& shape, bool backward);

}  // namespace mr::cuda
