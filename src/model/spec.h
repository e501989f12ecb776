// A decoder's architecture as one value. Llama, Mistral, Qwen2/3, GPT-2 and GPT-NeoX differ only in
// this: there is one forward pass for each kind of device (engine.h), and it reads the spec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/activation/activation.h"
#include "ops/attention/paged/attention.h"
#include "ops/norm/kind.h"
#include "ops/rope/rope.h"

namespace mr::model {

using ops::NormKind;

enum class Residual {
    sequential,  // x += attn(norm1(x)); x += mlp(norm2(x))
    parallel,    // x += attn(norm1(x)) + mlp(norm2(x))      (GPT-NeoX)
};

struct RopeSpec {
    enum class Scaling { none, linear, llama3, yarn };

    int rotary = 0;  // rotated elements of a head; 0: no rotary positions
    ops::RopeStyle style = ops::RopeStyle::half;
    double theta = 10000.0;
    Scaling scaling = Scaling::none;
    double factor = 1.0;
    double original_context = 0;  // llama3, yarn: the context the model was first trained for
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3
    double beta_fast = 32, beta_slow = 1;              // yarn
    double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1
    std::vector<float> freq_factors;                   // divisors from a file, one per frequency

    bool operator==(const RopeSpec&) const = default;
};

// What a layer computes with its weights. Every path that computes layers names all members in its
// `takes` function (TakesLayer below): a new member stops them from compiling until each handles
// it.
struct LayerSpec {
    ops::AttentionMask mask;
    RopeSpec rope;
    float scale = 0;    // of the scores; 0: ops::default_scale(head_dim)
    float softcap = 0;  // scores become softcap * tanh(score / softcap); 0: none
    NormKind norm = NormKind::rms;
    float norm_eps = 1e-5f;  // for all norms of the layer
    bool qk_norm = false;    // rmsnorm of every query and key head, before the rotation
    ops::Activation activation = ops::Activation::silu;
    bool gated = true;  // down(act(gate(x)) * up(x)), else down(act(up(x)))

    bool operator==(const LayerSpec&) const = default;
};

// A diffusion model, which fills in unknown tokens, many in a pass (decode/diffusion.h). The masks
// of the layers say what its tokens see: block_causal, or full.
struct DiffusionSpec {
    std::int32_t mask = -1;  // the token in unknown places
    // Positions that are filled in together, counted from position 0, as in the layers' masks; 0:
    // attention is full, and the user chooses the block.
    std::int32_t block = 0;
    // Parts of a block that are filled in one after another (Fast-dLLM v2); 0: the block is one
    // part.
    std::int32_t sub_block = 0;
    bool shifted = false;  // logits at position p are of the token at p + 1; else of that at p

    bool operator==(const DiffusionSpec&) const = default;
};

inline constexpr int kMaxLayers = 1 << 12;  // far above any real model

// The LayerSpec base holds what all layers have in common, and the norm before the LM head. Code
// that computes a layer uses layer(i).
struct ModelSpec : LayerSpec {
    // "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox"; diffusion models: "sdar",
    // "fast-dllm", "llada", "dream"
    std::string family;
    std::string name;  // as the file says; may be empty
    int vocab = 0;
    int dim = 0;
    int layers = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int hidden = 0;   // of the MLP
    int context = 0;  // positions the model was trained for

    Residual residual = Residual::sequential;
    bool qkv_bias = false;
    bool out_bias = false;  // attention's output projection
    bool mlp_bias = false;
    bool learned_positions = false;          // a table added to the embedding (GPT-2)
    bool tied_embeddings = false;            // the LM head is the embedding table
    std::optional<DiffusionSpec> diffusion;  // none: autoregressive
    // The layers one by one, [layers], if they differ; empty: all are the common one.
    std::vector<LayerSpec> own;

    // Everything about layer i; its scale is never 0. Returns a copy: compute paths keep all of
    // them (layer_specs()), since a step allocates nothing.
    LayerSpec layer(int i) const;
    std::vector<LayerSpec> layer_specs() const;  // [layers]
    LayerSpec common() const;                    // as layer(), for a layer without its own spec

    // Positions that a query sees at most in any layer, its own included; 0: all before it.
    std::int64_t widest_window() const;

    int q_dim() const { return heads * head_dim; }
    int kv_dim() const { return kv_heads * head_dim; }
    std::uint64_t parameters() const;
    // Throws Error naming `file` and the field if the numbers contradict each other or exceed what
    // the engine supports (all positive, heads % kv_heads == 0, rotary even, ...).
    void validate(const std::string& file) const;
};

// Sets spec.diffusion, and the matching masks in all layers.
void set_diffusion(ModelSpec& spec, const DiffusionSpec& diffusion);

// The angular frequency of each pair, and the factor for cos and sin, after scaling. Empty if there
// are no rotary positions.
struct RopeFrequencies {
    std::vector<double> inv_freq;  // [rotary / 2]
    double magnitude = 1.0;
};
RopeFrequencies rope_frequencies(const RopeSpec& rope);

// The distinct rotations of a model's layers: layers that share one share its table of positions.
struct LayerRopes {
    std::vector<RopeSpec> ropes;
    std::vector<int> of_layer;  // [layers], into `ropes`; -1: no rotary positions
};
LayerRopes layer_ropes(const ModelSpec& spec);

// What a path lacks for `layer`, in words ("a softcap of scores"), or empty if it supports it.
// `common`: what the model's layers have in common, for paths that share some of it.
using TakesLayer = std::string (*)(const LayerSpec& layer, const LayerSpec& common);
struct LayerLack {
    int layer;
    std::string what;
};
// The lack of the first layer that is not supported.
std::optional<LayerLack> lack_of(const ModelSpec& spec, TakesLayer takes);
// Throws Error (input) naming `file`, the layer and what `path` ("the GPU engine") lacks.
void require_layers(const ModelSpec& spec, TakesLayer takes, const std::string& file,
                    const char* path, const char* remedy);

}  // namespace mr::model
