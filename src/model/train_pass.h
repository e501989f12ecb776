// Forward and backward of a training step, written once for every family, over TrainOps.
//
//   x -> h1 = norm(x) -> qkv = h1 Wqkvᵀ -> [norm of heads] -> rope -> attention -> x1 = x + attn
//   Woᵀ
//     -> h2 = norm(x1) -> gu = h2 [gate; up]ᵀ -> a = act(gu) -> x2 = x1 + a Wdownᵀ
// (parallel residual: both norms read x, both branches are added to it).
// The LM head and the loss are worked off in chunks of rows: all logits never exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "model/params.h"
#include "model/train_ops.h"

namespace mr::model {

// What of a layer is not kept between forward and backward, but made again. The bits of a step are
// the same for all three.
enum class Recompute {
    none,   // everything is kept
    light,  // norms' outputs and the activation's output are made again: cheap, a third less memory
    full,   // only a layer's input is kept: a second forward
};
const char* recompute_name(Recompute recompute);

// The head's rows at a time that suit the vocabulary and the device, where `wanted` is 0.
std::int64_t default_head_rows(const ModelSpec& spec, std::int64_t tokens, DType compute);

class TrainPass {
  public:
    // Takes its memory from `ops`, which must outlive it. ops.prepare() comes first, by the caller.
    TrainPass(const ParamLayout& layout, const TrainShape& shape, Recompute recompute,
              TrainOps& ops);
    ~TrainPass();

    // Activations by purpose: kept, workspace, logits.
    static MemoryPlan plan(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                           DType compute);

    // Forward and backward of the batch in `slot`. Gradients are added to `grads` (views of the
    // flat f32 buffer). losses() holds the loss of every token; each counts `scale` in the
    // gradient.
    void step(const Weights& weights, const Weights& grads, int slot, float scale);
    // The losses alone.
    void evaluate(const Weights& weights, int slot);
    // f32 [tokens], on the device.
    Tensor losses() const;

  private:
    struct Layer;  // the activations of one
    struct Buffers;

    void forward(const Weights& weights, int slot);
    void forward_layer(const LayerWeights& w, int layer);
    void backward_layer(const LayerWeights& w, const LayerWeights& g, int layer);
    void head(const Weights& weights, const Weights* grads, int slot, float scale);

    ModelSpec spec_;
    TrainShape shape_;
    Recompute recompute_;
    TrainOps& ops_;
    std::unique_ptr<Buffers> b_;
};

// A model in training on one device: parameters, gradients, moments, and the pass.
struct TrainEngineOptions {
    bool cuda = false;
    int threads = 0;  // 0: all cores
    TrainShape shape;
    Recompute recompute = Recompute::none;
};

class TrainEngine {
  public:
    // What it will hold on its device.
    static MemoryPlan plan(const ModelSpec& spec, const TrainEngineOptions& options);
    // Throws Error (device) with what would fit where the plan does not.
    TrainEngine(const ModelSpec& spec, const TrainEngineOptions& options);
    ~TrainEngine();

    const ModelSpec& spec() const { return layout_.spec; }
    const ParamLayout& layout() const { return layout_; }
    const TrainEngineOptions& options() const { return options_; }
    TrainOps& ops() { return *ops_; }
    Ledger& ledger() { return ops_->ledger(); }
    ThreadPool& pool() { return pool_; }

    void init(std::uint64_t seed);
    void load(const Model& model);  // expanded to f32
    // All three, f32 [layout().count]; any may be null.
    void set_state(const float* params, const float* m, const float* v);
    void get_state(float* params, float* m, float* v);

    // The batch in ops().host_slot(slot) goes to the device.
    void put(int slot) { ops_->put(slot); }
    // Adds gradients and losses of the slot's batch. `scale`: what a token's loss counts, 1 / the
    // targets of the whole step.
    void accumulate(int slot, double scale);
    // The optimizer's step by what was accumulated; then gradients are 0 again. Where the
    // gradient's norm is not finite nothing changes, and `skipped` says so.
    struct StepResult {
        double loss = 0;       // mean over what was accumulated, nats per token
        double grad_norm = 0;  // before clipping
        bool skipped = false;
    };
    StepResult update(const ops::AdamW& with);
    // The sum of losses of the slot's batch, nats.
    double evaluate(int slot);
    // The losses of the last pass, [tokens].
    void read_losses(std::span<float> out);
    // The gradients, f32 [layout().count]: for tests.
    void read_grads(std::span<float> out);

    // FLOPs of a step's products and attention, forward and backward, without recomputation.
    static std::uint64_t flops_per_token(const ModelSpec& spec, int seq);

  private:
    ParamLayout layout_;
    TrainEngineOptions options_;
    ThreadPool pool_;
    std::unique_ptr<TrainOps> ops_;
    Tensor params_, copy_, grads_, m_, v_;  // flat [count]
    double* sums_ = nullptr;                // on the device: of losses, of squares of gradients
    double scale_ = 0;                      // of the losses
    Weights weights_, grad_views_;
    std::unique_ptr<TrainPass> pass_;
};

}  // namespace mr::model
