// The engine on the GPU: weights, cache, activations, positions, logits and the sampler live there,
// and a decode step is one graph launch. The host lays out batches and does the bookkeeping.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/arena.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"

namespace mr::model {

// All expect options with defaults filled in; `wanted` are those that were asked for.

// What a device engine allocates on the device. Exact to the byte, except for the driver's memory
// for captured graphs, which is an estimate (graph_bytes()).
MemoryPlan device_plan(const Model& model, const EngineOptions& options);
// Why the device's passes do not take a layer, and why the step in one kernel (ops/step) does not,
// in which case it runs kernel by kernel (TakesLayer). Need no GPU.
std::string device_takes(const LayerSpec& layer, const LayerSpec& common);
std::string step_takes_layer(const LayerSpec& layer, const LayerSpec& common);
// Throws Error (input) if the device's kernels do not support the model's shapes. Needs no GPU.
void require_device_shape(const Model& model);
// Throws Error (device) with the sizes, and what would fit, if the plan exceeds `available`.
void require_device_memory(const Model& model, const EngineOptions& options,
                           const EngineOptions& wanted, std::uint64_t available);
// Both checks, against the GPU's free memory; `held` bytes of the plan are allocated already.
void require_device(const Model& model, const EngineOptions& options, const EngineOptions& wanted,
                    std::uint64_t held = 0);
// The default type of the KV cache.
DType device_kv_type(const Model& model);
// Whether attention_prefill() takes the flash forwards: then sinks change a prompt's bits only from
// the first token on that has a sink before its window. May return false where it is true.
bool device_prompts_flash(const Model& model, const EngineOptions& options);

std::unique_ptr<Engine> make_device_engine(std::shared_ptr<const Model> model,
                                           std::shared_ptr<const DeviceWeights> weights,
                                           const EngineOptions& options);
// Input of the LM head in the last pass of this engine, copied to the host: f32 [rows, dim], in the
// order of the logits: the first `rows` of it. Once per pass; valid until the next one.
Tensor device_head_input(Engine& engine, std::int64_t rows);

}  // namespace mr::model
