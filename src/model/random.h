// Models with made-up weights: to measure without downloading, and for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace mr::model
