// The forward pass on the GPU: weights, cache, activations, positions, logits and the sampler live
// there, and a decode step is one graph launch. Engine (forward.h) owns one where it computes on
// the device; the host lays batches out and keeps the books of the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/cuda/timeline.h"
#include "core/ledger.h"
#include "model/cuda/device_weights.h"
#include "model/forward.h"
#include "ops/sample/sample.h"

namespace mr::model {

class DeviceEngine {
  public:
    virtual ~DeviceEngine() = default;

    virtual KvCache& cache() = 0;
    // One pass over the items; seqs[i] says where item i's tokens stand. Returns logits f32
    // [rows, vocab] in device memory, rows in the order of the items.
    virtual Tensor forward(std::span<const BatchItem> batch,
                           std::span<const ops::BatchSeq> seqs) = 0;
    // nll of targets by the logits of the last pass.
    virtual void cross_entropy(std::span<double> nll, Tensor logits,
                               std::span<const std::int32_t> targets) = 0;
    virtual void to_host(std::span<float> values, Tensor tensor) = 0;

    // Decoding: rows draw their first tokens from `logits`, one row each; every step() then feeds
    // the drawn tokens back and draws again, without the host. The draws of a row are numbered from
    // 0; wait() gives one when it is there.
    virtual void begin(std::span<const DecodeRow> rows, Tensor logits) = 0;
    virtual void step() = 0;
    virtual ops::Sampled wait(int row, std::uint64_t draw) = 0;
    // Whether the layers of such a step are one kernel.
    virtual bool persistent() const = 0;
    virtual void synchronize() = 0;
    // The stages of one more step, as the kernels stamped them.
    virtual std::vector<cuda::Stage> measured_step() = 0;
    // While watched, every pass and step waits until it is done and keeps its stages for
    // take_stages().
    virtual void watch(bool on) = 0;
    virtual bool watched() const = 0;
    virtual std::vector<cuda::Stage> take_stages() = 0;
};

// Tokens of a pass where nobody says how many: enough for products of many rows to be at their
// best, and a pass of a large model is still over before a person notices.
inline constexpr int kDeviceBatch = 2048;

// What a device engine holds there. Exact: what is planned is what is taken, to the byte.
MemoryPlan device_plan(const Model& model, const EngineOptions& options);
// Throws Error (input) where the device's kernels do not take such a model. Needs no GPU.
void require_device_shape(const Model& model);
// Throws Error (device) with the numbers, and what would fit, where the plan is over `available`.
void require_device_memory(const Model& model, const EngineOptions& options,
                           std::uint64_t available);
// Both, with what is free on the GPU; `held` bytes of the plan lie there already.
void require_device(const Model& model, const EngineOptions& options, std::uint64_t held = 0);
// The type of the KV cache where none was asked for.
DType device_kv_type(const Model& model);

std::unique_ptr<DeviceEngine> make_device_engine(std::shared_ptr<const Model> model,
                                                 std::shared_ptr<const DeviceWeights> weights,
                                                 const EngineOptions& options, Ledger& ledger);

}  // namespace mr::model
