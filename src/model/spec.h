// What a decoder is, as one value. Llama, Mistral, Qwen2/3, GPT-2 and GPT-NeoX differ in nothing
// else: there is one forward pass for each kind of device (engine.h), and it reads this.
#pragma once

#include <cstdint>
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

    int rotary = 0;  // elements of a head that turn; 0: no rotary positions
    ops::RopeStyle style = ops::RopeStyle::half;
    double theta = 10000.0;
    Scaling scaling = Scaling::none;
    double factor = 1.0;
    double original_context = 0;  // llama3, yarn: the context the model was first trained for
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3
    double beta_fast = 32, beta_slow = 1;              // yarn
    double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1
    std::vector<float> freq_factors;                   // a file may give divisors, one a frequency
};

struct ModelSpec {
    std::string family;  // "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox"
    std::string name;    // as the file says; may be empty
    int vocab = 0;
    int dim = 0;
    int layers = 0;
    int heads = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int hidden = 0;   // of the MLP
    int context = 0;  // positions the model was trained for

    NormKind norm = NormKind::rms;
    float norm_eps = 1e-5f;
    Residual residual = Residual::sequential;
    bool qk_norm = false;  // rmsnorm of every query and key head, before the rotation
    ops::Activation activation = ops::Activation::silu;
    bool gated = true;  // down(act(gate(x)) * up(x)), else down(act(up(x)))
    bool qkv_bias = false;
    bool out_bias = false;  // attention's output projection
    bool mlp_bias = false;
    bool learned_positions = false;  // a table added to the embedding (GPT-2)
    bool tied_embeddings = false;    // the LM head is the embedding table
    RopeSpec rope;
    ops::AttentionMask mask;

    int q_dim() const { return heads * head_dim; }
    int kv_dim() const { return kv_heads * head_dim; }
    std::uint64_t parameters() const;
    // Throws Error naming `file` and the field where the numbers contradict each other or are
    // outside of what the engine takes (all positive, heads % kv_heads == 0, rotary even, ...).
    void validate(const std::string& file) const;
};

// The rotation speed of each pair, and the magnitude that cos and sin are multiplied with, after
// scaling. Empty where there are no rotary positions.
struct RopeFrequencies {
    std::vector<double> inv_freq;  // [rotary / 2]
    double magnitude = 1.0;
};
RopeFrequencies rope_frequencies(const RopeSpec& rope);

}  // namespace mr::model
