// Models with made-up weights: to measure without downloading, and for tests.
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

// "random:SHAPE[:TYPE]"; without a type bf16, which is how such models are published. Throws Error
// (usage) that lists the shapes for one that is not known.
std::pair<ModelSpec, DType> random_shape(const std::string& source);

// ... with its weights; `planned` is that of LoadOptions. Throws Error (device) before it takes
// memory where there is not enough.
Model random_model(const std::string& source,
                   const std::function<void(const Model&)>& planned = {});

// A model of any spec. Matrices are `dtype` (f16 where a row is not a whole number of blocks),
// uniform with the variance that keeps activations near 1; norms are 1, biases small.
Model random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                   const std::function<void(const Model&)>& planned = {});

// The same without its matrices, which a device makes: they have type and shape, and
// Model::deferred is the seed. Norms and biases are there.
Model deferred_random_model(const std::string& source,
                            const std::function<void(const Model&)>& planned = {});
Model deferred_random_model(const ModelSpec& spec, DType dtype, std::uint64_t seed,
                            const std::function<void(const Model&)>& planned = {});

// What the rows of a random matrix are made of. Row r is started at splitmix(key + r); its word n
// is 8 weights: bytes of a table's index where they are floats, quants as they lie in a block.
struct RandomRows {
    // `index` is the matrix's place in roles_of().
    RandomRows(DType dtype, std::int64_t cols, std::uint64_t seed, std::size_t index);
    void fill(std::byte* row, std::int64_t r) const;

    static constexpr std::uint64_t kOddBytes = 0x0101010101010101u;  // q8_0: ored into every word

    DType dtype;
    std::int64_t cols;
    std::uint64_t key;
    std::uint16_t scale = 0;                  // f16, of every block
    std::array<std::uint32_t, 256> values{};  // bits: f32, or f16 or bf16 in the low half
};

}  // namespace mr::model
