// Speed of attention on the GPU: decode in bytes per second, prefill in FLOP/s. Every call reads
// other memory, so that no cache helps.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/device.h"
#include "core/dtype.h"

namespace mr::cuda {

struct AttentionShape {
    int heads = 32, kv_heads = 32, head_dim = 128;
    int batch = 1;  // sequences decoded together
    DType dtype = DType::bf16;
    int chunk = 0;         // > 0: only this many rows of a prompt, the last, over all its keys
    bool resident = true;  // Context::resident_attention
    int window = 0, sinks = 0;
};

struct AttentionMeasured {
    DeviceInfo device;
    struct Decode {
        int keys = 0;
        double seconds = 0;       // per call, in a graph
        std::uint64_t bytes = 0;  // q, keys, values and out, each once
    };
    std::vector<Decode> decode;
    struct Prefill {
        int rows = 0, keys = 0;  // causal: the last `rows` of `keys` positions
        double seconds = 0;
        double flops = 0;  // of the pairs that the mask keeps
    };
    std::vector<Prefill> prefill;
};

// One row for each number of keys and of prompt rows. Error (device) without a GPU.
AttentionMeasured measure_attention(const AttentionShape& shape, const std::vector<int>& keys,
                                    const std::vector<int>& prompts);

}  // namespace mr::cuda
