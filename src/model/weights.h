// The tensors of a model by role. They are views into a mapped file or into `owned` memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/mapped_file.h"
#include "core/tensor.h"
#include "model/spec.h"

namespace mr::model {

// Matrices are [out, in] in f32, f16, bf16, q8_0 or q4_0; norms and biases are always f32. A tensor
// that the spec does not ask for is none.
struct LayerWeights {
    Tensor attn_norm, attn_norm_bias;  // [dim]
    Tensor q, k, v;                    // [q_dim, dim], [kv_dim, dim], [kv_dim, dim]
    Tensor q_bias, k_bias, v_bias;
    Tensor q_norm, k_norm;           // [head_dim]
    Tensor o, o_bias;                // [dim, q_dim], [dim]
    Tensor mlp_norm, mlp_norm_bias;  // [dim]
    Tensor gate;                     // [hidden, dim], where gated
    Tensor up, up_bias;              // [hidden, dim], [hidden]
    Tensor down, down_bias;          // [dim, hidden], [dim]
};

struct Weights {
    Tensor embedding;  // [vocab, dim]
    Tensor positions;  // [context, dim], where positions are learned
    std::vector<LayerWeights> layers;
    Tensor final_norm, final_norm_bias;  // [dim]
    Tensor head, head_bias;              // [vocab, dim]; the embedding where tied

    std::uint64_t mapped_bytes = 0;              // read in place from the file
    std::uint64_t owned_bytes = 0;               // copied or expanded at load
    std::vector<std::shared_ptr<void>> keep;     // maps that views point into
    std::span<const MappedFile> files;           // ... as files, for reading without the map
    std::vector<std::shared_ptr<Arena>> arenas;  // ... and memory of our own

    // Bytes of weights that one decoded token reads: all matrices once, one embedding row.
    std::uint64_t bytes_per_token() const;
};

}  // namespace mr::model
