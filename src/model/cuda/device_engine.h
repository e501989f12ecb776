// The engine on the GPU: weights, cache, activations, positions, logits and the sampler live there,
// and a decode step is one graph launch. The host lays batches out and keeps the books.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/arena.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"

namespace mr::model {

// All take options with their defaults filled in.

// What a device engine holds there. Exact: what is planned is what is taken, to the byte; what the
// driver takes for captured graphs is an estimate (graph_bytes()).
MemoryPlan device_plan(const Model& model, const EngineOptions& options);
// What of a layer the device's passes lack, and why the step in one kernel (ops/step) does not take
// a layer, which then runs kernel by kernel (TakesLayer). Need no GPU.
std::string device_takes(const LayerSpec& layer, const LayerSpec& common);
std::string step_takes_layer(const LayerSpec& layer, const LayerSpec& common);
// Throws Error (input) where the device's kernels do not take such a model. Needs no GPU.
void require_device_shape(const Model& model);
// Throws Error (device) with the numbers, and what would fit, where the plan is over `available`.
void require_device_memory(const Model& model, const EngineOptions& options,
                           std::uint64_t available);
// Both, with what is free on the GPU; `held` bytes of the plan lie there already.
void require_device(const Model& model, const EngineOptions& options, std::uint64_t held = 0);
// The type of the KV cache where none was asked for.
DType device_kv_type(const Model& model);
// Whether attention_prefill() takes the flash forwards: then a prompt has other bits with sinks
// only from the first token on that has one before its window. May say no where it is yes.
bool device_prompts_flash(const Model& model, const EngineOptions& options);

std::unique_ptr<Engine> make_device_engine(std::shared_ptr<const Model> model,
                                           std::shared_ptr<const DeviceWeights> weights,
                                           const EngineOptions& options);
// What the LM head read in the last pass of such an engine, on the host: f32 [rows, dim], in the
// order of the logits: the first `rows` of them. Once a pass; valid until the next one.
Tensor device_head_input(Engine& engine, std::int64_t rows);

}  // namespace mr::model
