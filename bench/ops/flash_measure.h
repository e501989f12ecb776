// How fast attention on plain tensors is on the GPU, forward and backward, and how much memory it
// takes; fused and, for comparison, with the matrix of weights in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/dtype.h"
#include "ops/attention/mask.h"

namespace mr::cuda {

struct FlashShape {
    int batch = 1, tokens = 2048;  // sequences of so many queries and keys
    int heads = 16, kv_heads = 16, head_dim = 128;
    ops::AttentionMask mask;
    DType dtype = DType::bf16;
    std::vector<int> lengths = {};  // of a packed batch's sequences, in place of batch and tokens

    int sequences() const { return lengths.empty() ? batch : static_cast<int>(lengths.size()); }
    int longest() const;
    std::int64_t all_tokens() const;
    // As everybody counts: two products over all pairs, half of them where causal, and where other
    // masks leave fewer, those; the backward is five products.
    double forward_flops() const;
    double backward_flops() const { return 2.5 * forward_flops(); }
};

struct FlashMeasured {
    double forward = 0, backward = 0;  // seconds a call, in a graph; backward 0: not measured
    double together = 0;               // one forward and one backward after the other; 0: likewise
    std::size_t tensors = 0;           // bytes of q, k, v, out and their gradients
    std::size_t extra = 0;             // bytes besides: log-sum-exp and scratch, or the matrices
};

// Error (device) without a GPU, OutOfMemory where memory does not suffice. A backward only of heads
// that it takes (kFlashBackwardMaxDim).
// between(): called after every round of measurements, to measure something else in turn.
FlashMeasured measure_flash(const FlashShape& shape, bool backward, bool together = false,
                            const std::function<void()>& between = {});
// One sequence and one head, causal, no window.
FlashMeasured measure_unfused(const FlashShape& shape, bool backward);

}  // namespace mr::cuda
