// The engine on the CPU: one forward pass for every family, over a ragged batch.
#pragma once

#include <memory>
#include <string>

#include "model/engine.h"

namespace mr::model {

// What of a layer the CPU's pass lacks (TakesLayer).
std::string cpu_takes(const LayerSpec& layer, const LayerSpec& common);

// Both take options with their defaults filled in.
MemoryPlan cpu_plan(const Model& model, const EngineOptions& options);
std::unique_ptr<Engine> make_cpu_engine(std::shared_ptr<const Model> model,
                                        const EngineOptions& options);
// What the LM head read in the last pass of such an engine, f32 [rows, dim], in the order of the
// logits: the first `rows` of them. Valid until the next pass.
Tensor cpu_head_input(const Engine& engine, std::int64_t rows);

}  // namespace mr::model
