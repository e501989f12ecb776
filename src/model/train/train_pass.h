// Forward and backward of a training step, written once for every family, over TrainOps.
//
//   x -> h1 = norm(x) -> qkv = h1 Wqkvᵀ -> [norm of heads] -> rope -> attention -> x1 = x + attn
//   Woᵀ
//     -> h2 = norm(x1) -> gu = h2 [gate; up]ᵀ -> a = act(gu) -> x2 = x1 + a Wdownᵀ
// (parallel residual: both norms read x, both branches are added to it).
// The LM head and the loss are computed in chunks of rows: all logits never exist at once. For
// diffusion (TrainShape::block) only rows of unknown tokens go through the head, and the last layer
// continues after its keys and values with noisy rows only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "model/train/params.h"
#include "model/train/train_ops.h"

namespace mr::model {

// What is recomputed in the backward instead of kept. The bits of a step are the same for all
// three.
enum class Recompute {
    none,   // everything is kept
    light,  // norms' and activation's outputs are recomputed: cheap, a third less memory
    full,   // only a layer's input is kept: a second forward
};
const char* recompute_name(Recompute recompute);
std::optional<Recompute> recompute_of(std::string_view name);

// The number of head rows at a time that suits the vocabulary and the device, if `wanted` is 0.
std::int64_t default_head_rows(const ModelSpec& spec, std::int64_t tokens, DType compute);

// Why training does not support a layer; empty if it does (TakesLayer).
std::string train_takes(const LayerSpec& layer, const LayerSpec& common);

enum class Rows;  // diffusion_attention.h

// Callbacks of a pass; any may be empty. Units are those of params.h. A pass visits units
// from 0 to the last, whose gradients come at once, and then, backward, from the one before
// to 0.
struct PassHooks {
    // Before the unit's weights are read, and, backward, before its first gradient is added.
    std::function<void(int unit, bool backward)> enter{};
    // The unit's gradients are complete.
    std::function<void(int unit)> done{};
};

// The layers of a pass, and how many passes may be between forward and backward at a time: each has
// its own kept activations.
struct PassStage {
    StageSpan layers;
    int on_their_way = 1;
    // No layer adds to the gradient of a bias of the layer below it, which may be another stage's:
    // fused into the layer above, a GPU sums it in another order.
    bool apart = false;
};

class TrainPass {
  public:
    // Allocates from `ops`, which must outlive it. The caller calls ops.prepare() first.
    TrainPass(const ParamLayout& layout, const TrainShape& shape, Recompute recompute,
              TrainOps& ops, const PassStage& stage = {});
    ~TrainPass();

    // Activations by purpose: kept, workspace, logits.
    static MemoryPlan plan(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                           DType compute, const PassStage& stage = {});

    // Forward and backward of the batch in `slot`, of which `counted` targets count: all, or
    // the slot's rows of unknown tokens. Gradients are added to `grads` (views of the flat f32
    // buffer). losses() holds the loss of every target; each has weight `scale` in the
    // gradient.
    void step(const Weights& weights, const Weights& grads, int slot, float scale,
              std::int64_t counted, const PassHooks& hooks = {});
    // Only the losses.
    void evaluate(const Weights& weights, int slot, std::int64_t counted,
                  const PassHooks& hooks = {});
    // f32 [shape.half()], on the device.
    Tensor losses() const;

    // The two halves of step() for the stage's layers: pass `number`, counted in order for each. If
    // the stage is not the first, input(number) is the residual stream, f32 [tokens, dim], and
    // afterwards gradient(number) its gradient; if it is not the last, forward() writes
    // output(number), and gradient(number) must hold that one's gradient before backward().
    void forward(const Weights& weights, int slot, int number, const PassHooks& hooks = {});
    void backward(const Weights& weights, const Weights& grads, int slot, float scale,
                  std::int64_t counted, int number, const PassHooks& hooks = {});
    // The losses of forward()'s result, if the stage is the last.
    void losses_of(const Weights& weights, int slot, std::int64_t counted, int number,
                   const PassHooks& hooks = {});
    // There is one more input than passes in flight, and two of each of the others: the next pass's
    // input, or the last pass's output, may lie there while a pass computes.
    Tensor input(int number) const;
    Tensor output(int number) const;
    Tensor gradient(int number) const;

  private:
    struct Layer;
    struct Buffers;
    // Every buffer by name, type and shape: the plan adds them up, the pass allocates them.
    template <typename Take>
    static void for_each_buffer(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                                DType compute, const PassStage& stage, Buffers& b, Take&& take);
    std::vector<Layer>& layers_of(int number);
    void make_rope_table();

    Rows rows_of(const Layer& a) const;
    void forward_attention(const LayerWeights& w, const Layer& a, Tensor x, Tensor out);
    void forward_mlp(const LayerWeights& w, const Layer& a, Tensor x, Tensor out);
    Tensor left_to_activation(const Layer& a, Tensor up_bias) const;
    void forward_layer(const LayerWeights& w, const Layer& a, Tensor out);
    void remake(const LayerWeights& w, const Layer& a);
    void head(const Weights& weights, const Weights* grads, int slot, float scale,
              std::int64_t counted);
    // o_bias, down_bias: their gradients, if not yet taken.
    void backward_attention(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                            Tensor o_bias);
    void backward_mlp(const LayerWeights& w, const LayerWeights& g, const Layer& a, Tensor dh,
                      Tensor down_bias);
    // `below`: the gradient of the next lower layer's down_bias, or none. Returns whether it was
    // taken.
    bool backward_layer(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                        Tensor down_bias, Tensor below);
    void norm(const LayerSpec& of, Tensor out, Tensor x, Tensor weight, Tensor bias);
    // dx += the gradient of a norm whose output has the gradient dy. dsum and the result as in
    // TrainOps::NormBackward.
    bool norm_backward(const LayerSpec& of, Tensor dy, Tensor x, Tensor weight, Tensor dweight,
                       Tensor dbias, bool copy, Tensor dsum);

    ModelSpec spec_;
    TrainShape shape_;
    Recompute recompute_;
    PassStage stage_;
    TrainOps& ops_;
    std::unique_ptr<Buffers> b_;
};

}  // namespace mr::model
