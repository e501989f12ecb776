// Plants a value into the weights of a loaded model, like damage or overflow.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/error.h"
#include "core/half.h"
#include "model/model.h"
#include "model/names.h"
#include "model/not_finite.h"

namespace mr::test {

// Copies the tensor and sets one element of it; in a quantised one the scale of its block.
inline void plant(model::Model& model, model::RoleAt at, std::int64_t element, float value) {
    Tensor& tensor = role_slot(model.weights, at);
    auto arena =
        std::make_shared<Arena>("planted", Arena::tensor_bytes(tensor.dtype, tensor.shape));
    const Tensor copy = arena->tensor(tensor.dtype, tensor.shape);
    std::memcpy(copy.data, tensor.data, tensor.bytes());
    auto* bytes = static_cast<std::byte*>(copy.data);
    const auto index = static_cast<std::size_t>(element);
    if (copy.dtype == DType::f32) {
        std::memcpy(bytes + 4 * index, &value, 4);
    } else if (copy.dtype == DType::bf16 || copy.dtype == DType::f16) {
        const std::uint16_t half =
            copy.dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
        std::memcpy(bytes + 2 * index, &half, 2);
    } else {
        const std::uint16_t scale = f32_to_f16(value);  // a block begins with its scale
        std::memcpy(bytes + dtype_bytes(copy.dtype, index / 32 * 32), &scale, 2);
    }
    const bool tied = at.role == model::Role::embedding && model.spec.tied_embeddings;
    tensor = copy;
    if (tied) model.weights.head = copy;
    model.weights.arenas.push_back(std::move(arena));
}

// The stage at which such a tensor's damage reaches the residual stream or the logits.
inline int stage_of(const model::ModelSpec& spec, model::RoleAt at) {
    using model::Role;
    if (at.role == Role::embedding || at.role == Role::positions) return model::embedding_stage();
    if (at.layer < 0) return model::logits_stage(spec);
    return at.role < Role::mlp_norm ? model::attention_stage(spec, at.layer)
                                    : model::mlp_stage(spec, at.layer);
}

// The beginning of the error after the file: "STAGE = VALUE: ... position N".
inline std::string finding(const model::ModelSpec& spec, int stage, float value,
                           std::int64_t position) {
    return model::stage_name(spec, stage) + " = " + (std::isnan(value) ? "NaN" : "infinity") +
           ": the first value that is not finite, at token position " + std::to_string(position) +
           "; ";
}

}  // namespace mr::test
