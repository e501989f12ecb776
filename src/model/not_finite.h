// --check-nan: the stages of a pass that the engines check, and the error for the user.
#pragma once

#include <cstdint>
#include <string>

#include "model/engine.h"
#include "ops/check/check.h"

namespace mr::model {

// In the order of a pass: with a parallel residual the MLP's half is added first. After the
// embedding and after either half of a layer, the residual stream is checked.
constexpr int embedding_stage() { return 0; }
inline int attention_stage(const ModelSpec& spec, int layer) {
    return (spec.residual == Residual::parallel ? 2 : 1) + 2 * layer;
}
inline int mlp_stage(const ModelSpec& spec, int layer) {
    return (spec.residual == Residual::parallel ? 1 : 2) + 2 * layer;
}
constexpr int logits_stage(const ModelSpec& spec) { return 1 + 2 * spec.layers; }

// "layer 5, after attention (out)"; layers count from 0, as in the names of tensors.
std::string stage_name(const ModelSpec& spec, int stage);

// Throws Error (input) with the stage, the value and its position in the sequence.
[[noreturn]] void throw_not_finite(const Model& model, const EngineOptions& options,
                                   const ops::NotFinite& found, std::int64_t position);

}  // namespace mr::model
