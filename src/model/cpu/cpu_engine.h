// The engine on the CPU: one forward pass for every family, over a ragged batch.
#pragma once

#include <memory>
#include <string>

#include "model/engine.h"

namespace mr::model {

// Why the CPU pass does not take a layer; empty if it does (TakesLayer).
std::string cpu_takes(const LayerSpec& layer, const LayerSpec& common);

// Both expect options with defaults filled in.
MemoryPlan cpu_plan(const Model& model, const EngineOptions& options);
std::unique_ptr<Engine> make_cpu_engine(std::shared_ptr<const Model> model,
                                        const EngineOptions& options);
// Input of the LM head in the last pass of this engine, f32 [rows, dim], in the order of the
// logits: the first `rows` of it. Valid until the next pass.
Tensor cpu_head_input(const Engine& engine, std::int64_t rows);

}  // namespace mr::model
