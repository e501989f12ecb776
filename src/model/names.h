// The tables of names: what files call each family, and what each dialect calls each tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "model/spec.h"
#include "model/weights.h"

namespace mr::model {

enum class Role : std::uint8_t {
    embedding,
    positions,
    attn_norm,
    attn_norm_bias,
    q,
    k,
    v,
    q_bias,
    k_bias,
    v_bias,
    q_norm,
    k_norm,
    o,
    o_bias,
    mlp_norm,
    mlp_norm_bias,
    gate,
    up,
    up_bias,
    down,
    down_bias,
    final_norm,
    final_norm_bias,
    head,
    // Only in files: q, k and v fused, and the divisors of the rotary frequencies.
    qkv,
    qkv_bias,
    rope_freqs,
    kCount,
};

// What files call a family.
struct FamilyNames {
    const char* family;        // of ModelSpec
    const char* architecture;  // config.json's "architectures"
    const char* model_type;    // config.json's "model_type"
    const char* gguf;          // GGUF's "general.architecture"
};
// Where two families share a name in GGUF, the first one is read.
std::span<const FamilyNames> family_names();
// Of a family that is in the table.
const FamilyNames& names_of_family(const std::string& family);
// "a, b and c": one column of the table, each name once. For errors.
std::string listed_families(const char* FamilyNames::*column);

// The layout of a model file. The Hugging Face dialects are those of the families.
enum class Dialect : std::uint8_t { hf_llama, hf_gpt2, hf_neox, hf_llada, gguf, llama2c };

// The Hugging Face dialect of a family of ModelSpec.
Dialect huggingface_dialect(const std::string& family);

// A role in a layer; layer is -1 for roles of the whole model.
struct RoleAt {
    Role role;
    int layer = -1;
};

bool is_per_layer(Role role);
bool is_matrix(Role role);  // else a norm or a bias
bool is_norm_weight(Role role);

// The tensors of a model with this spec, in the order of the forward pass. A tied head is left
// out.
std::vector<RoleAt> roles_of(const ModelSpec& spec);
// Its shape in memory: matrices [out, in].
Shape role_shape(const ModelSpec& spec, Role role);
// Its place in `weights`; layers must have been resized.
Tensor& role_slot(Weights& weights, RoleAt at);
const Tensor& role_slot(const Weights& weights, RoleAt at);

// The names a file may use, the one to write first. Empty if the dialect has no such tensor.
std::vector<std::string> tensor_names(Dialect dialect, RoleAt at);

// How the tensors of a dialect differ from those in memory.
struct DialectLayout {
    bool transposed = false;  // matrices of layers are [in, out]
    enum class Qkv {
        separate,
        stacked,  // all rows of q, then k, then v
        by_head,  // q, k and v of head 0, then of head 1, ...
    } qkv = Qkv::separate;
    ops::RopeStyle rope = ops::RopeStyle::half;  // row order of q and k
};
DialectLayout dialect_layout(Dialect dialect, const std::string& family);

// Whether a tensor without a role may be ignored: buffers in old files.
bool is_known_buffer(const std::string& name);

}  // namespace mr::model
