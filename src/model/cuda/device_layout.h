// Where the weights lie in device memory, decided before any is allocated: the plan is exact. Needs
// no GPU.
//
// Norms and biases (f32) lie first, in one piece; then the matrices in the order of the forward
// pass. f32, f16 and bf16 matrices are row-major [n, k]; q8_0 and q4_0 ones are q8_0x8 and q4_0x8
// (ops/linear/tile_layout.h). q, k and v of a layer are one matrix [q_dim + 2 kv_dim, dim], gate
// and up one [2 hidden, dim], wherever types and alignment allow it.
//
// On the device, rotation always pairs neighbours: for models that pair halves, the rows of q and k
// (biases and norms too) are reordered so that both give the same result (RowOrder).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/arena.h"
#include "model/model.h"
#include "model/names.h"
#include "model/row_order.h"
#include "model/weights.h"

namespace mr::model {

// Parts of LayerWeights joined into one tensor. Empty where the parts could not be joined.
struct DeviceLayer {
    Tensor qkv;       // [q_dim + 2 kv_dim, dim]
    Tensor qkv_bias;  // [q_dim + 2 kv_dim]
    Tensor gate_up;   // [2 hidden, dim]: all rows of gate, then all of up
};

// The type of a tensor on the host, which decides its type on the device.
using DTypeOf = std::function<DType(RoleAt)>;
DTypeOf types_of(const Model& model);

// q8_0 -> q8_0x8, q4_0 -> q4_0x8; floats stay.
DType device_type(DType host);
// Bytes of a matrix in this (device) type, padding included.
std::uint64_t device_matrix_bytes(DType type, std::int64_t rows, std::int64_t cols);

// The weights as laid out from address `base` on.
struct DeviceViews {
    Weights weights;                  // shapes [n, k], types of the device
    std::vector<DeviceLayer> layers;  // joined tensors of each layer
    std::uint64_t vector_bytes = 0;   // of the norms and biases, which lie first
    std::uint64_t bytes = 0;          // in all: a multiple of DeviceArena's unit
};
DeviceViews device_views(const ModelSpec& spec, const DTypeOf& types, std::uintptr_t base);

// Exact bytes of the weights on the device.
std::uint64_t device_weight_bytes(const ModelSpec& spec, const DTypeOf& types);
std::uint64_t device_weight_bytes(const Model& model);
// The same if all matrices were `type` (f16 where a row is not a whole number of blocks).
std::uint64_t device_weight_bytes(const ModelSpec& spec, DType type);

// The numbers behind the error for a plan that exceeds the device's memory.
struct DeviceNeeds {
    MemoryPlan plan;            // weights, KV cache, activations, ...
    std::uint64_t weights = 0;  // the plan's bytes of weights
    // The option that sets how many positions there are, and its largest value that fits; 0: none
    // does, or it is not known.
    const char* option = "--ctx";
    std::int64_t fitting = 0;
};
// Throws Error (device) with the sizes, and what would fit, if the plan exceeds `available`.
void require_device_memory(const DeviceNeeds& needs, const ModelSpec& spec,
                           std::uint64_t available);
// Only the remedy: "use --ctx 2048, or weights of q8_0 (6.8 GiB) or q4_0 (3.6 GiB)".
std::string device_remedy(const DeviceNeeds& needs, const ModelSpec& spec, std::uint64_t available);

// The row of the host's tensor that is row r on the device.
RowOrder row_order(const ModelSpec& spec, Role role);

}  // namespace mr::model
