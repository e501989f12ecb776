// Models with random weights, for measurements without a download and for tests.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/splitmix.h"
#include "model/model.h"

namespace mr::model {

inline constexpr std::string_view kRandomPrefix = "random:";

// Parses "random:SHAPE[:TYPE]"; the default type is bf16, in which such models are published.
// Throws Error (usage) listing the shapes for an unknown one.
std::pair<ModelSpec, DType> random_shape(const std::string& source);

// The same as a model to inspect: tensors have type and shape but no memory. No check that the
// weights would fit.
Model planned_random_model(const std::string& source);

// The same with its weights; `planned` and `progress` as in LoadOptions. Throws Error (device)
// before it allocates if there is not enough memory.
Model random_model(const std::string& source, const std::function<void(const Model&)>& planned = {},
                   const Progress& progress = {});

// A model of any spec. Matrices are `dtype` (f16 where a row is not a whole number of blocks),
// uniform with the variance that keeps activations near 1; norms are 1, biases small.
Model random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                   const std::function<void(const Model&)>& planned = {},
                   const Progress& progress = {});

// The same without the matrices' data, which a device makes: they have type and shape, and
// Model::deferred is the seed. Norms and biases are filled in.
Model deferred_random_model(const std::string& source,
                            const std::function<void(const Model&)>& planned = {});
Model deferred_random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                            const std::function<void(const Model&)>& planned = {});

// Generator of the rows of a random matrix. Row r starts at splitmix(key + r); its word n gives 8
// weights: indices into a table for floats, quants in block order otherwise.
struct RandomRows {
    // `index`: of the matrix in roles_of().
    RandomRows(DType dtype, std::int64_t cols, std::uint64_t seed, std::size_t index);
    void fill(std::byte* row, std::int64_t r) const;

    static constexpr std::uint64_t kOddBytes = 0x0101010101010101u;  // q8_0: ored into every word

    DType dtype;
    std::int64_t cols;
    std::uint64_t key;
    std::uint16_t scale = 0;                  // f16, the same for every block
    std::array<std::uint32_t, 256> values{};  // bits: f32, or f16 or bf16 in the low half
};

}  // namespace mr::model
