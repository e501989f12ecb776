// --check-nan: the stages of a pass at which the engines look, and what a user is told.
#pragma once

#include <cstdint>
#include <string>

#include "model/engine.h"
#include "ops/check/check.h"

namespace mr::model {

// In the order in which a pass comes to them: a parallel residual has the MLP's half added first.
// After the embedding and after either half of a layer it is the residual stream that is looked at.
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

// Throws Error (input): what was found, at this position of its sequence.
[[noreturn]] void throw_not_finite(const Model& model, const EngineOptions& options,
                                   const ops::NotFinite& found, std::int64_t position);

}  // namespace mr::model
