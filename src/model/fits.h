// Which weight types and how much context of a model fit into a given amount of memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "model/spec.h"

namespace mr::model {

// Bytes of the model's weights: matrices in `type` (f16 where a row is not a whole number of
// blocks), norms and biases in f32.
std::uint64_t weight_bytes(const ModelSpec& spec, DType type);
// The same after repack_weights() (cpu/repack.h), which copies a tied table for the head.
std::uint64_t repacked_weight_bytes(const ModelSpec& spec, DType type);

struct Fit {
    DType weights, kv;
    std::uint64_t weight_bytes = 0;
    // Positions that the cache of one sequence can hold beside the weights, in whole pages; at most
    // kMostContext, and at most the model's own where positions are learned. 0: not even the
    // weights fit.
    std::int64_t context = 0;
};
inline constexpr std::int64_t kMostContext = std::int64_t{1} << 31;

// One for each weight type (f32, f16, bf16, q8_0, q4_0) and each of `kv_types`, in that order.
// `other`: bytes of a run besides weights and cache; `bytes` computes the size of the weights: on
// a CPU repacked_weight_bytes() if they are repacked, on a GPU device_weight_bytes()
// (device_layout.h).
using WeightBytes = std::uint64_t (*)(const ModelSpec& spec, DType type);
std::vector<Fit> what_fits(const ModelSpec& spec, std::uint64_t memory, std::uint64_t other,
                           std::span<const DType> kv_types, WeightBytes bytes = weight_bytes);

}  // namespace mr::model
