#include "model/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/error.h"

namespace mr::model {
namespace {

constexpr FamilyNames kFamilyNames[] = {
    {"llama", "LlamaForCausalLM", "llama", "llama"},
    {"mistral", "MistralForCausalLM", "mistral", "llama"},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", "qwen2"},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", "qwen3"},
    {"gpt2", "GPT2LMHeadModel", "gpt2", "gpt2"},
    {"gpt-neox", "GPTNeoXForCausalLM", "gpt_neox", "gptneox"},
    {"sdar", "SDARForCausalLM", "sdar", "sdar"},
    {"fast-dllm", "Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen", "fast-dllm"},
    {"llada", "LLaDAModelLM", "llada", "llada"},
    {"dream", "DreamModel", "Dream", "dream"},
};

struct Row {
    Role role;
    // Names by dialect, in the order of the enum; null if it has none. "@" stands for the dialect's
    // prefix, which files saved from a bare model omit; "{}" for the layer; "|" separates
    // alternative names, the one to write first.
    std::array<const char*, 6> names;
};

constexpr std::array<const char*, 6> kPrefix = {"model.", "transformer.", "gpt_neox.", "model.", "",
                                                ""};

// clang-format off
constexpr Row kTable[] = {
    {Role::embedding,       {"@embed_tokens.weight", "@wte.weight", "@embed_in.weight", "@transformer.wte.weight", "token_embd.weight", "tok_embeddings"}},
    {Role::positions,       {nullptr, "@wpe.weight", nullptr, nullptr, "position_embd.weight", nullptr}},
    {Role::attn_norm,       {"@layers.{}.input_layernorm.weight", "@h.{}.ln_1.weight", "@layers.{}.input_layernorm.weight", "@transformer.blocks.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "layers.{}.attention_norm"}},
    {Role::attn_norm_bias,  {nullptr, "@h.{}.ln_1.bias", "@layers.{}.input_layernorm.bias", nullptr, "blk.{}.attn_norm.bias", nullptr}},
    {Role::q,               {"@layers.{}.self_attn.q_proj.weight", nullptr, nullptr, "@transformer.blocks.{}.q_proj.weight", "blk.{}.attn_q.weight", "layers.{}.attention.wq"}},
    {Role::k,               {"@layers.{}.self_attn.k_proj.weight", nullptr, nullptr, "@transformer.blocks.{}.k_proj.weight", "blk.{}.attn_k.weight", "layers.{}.attention.wk"}},
    {Role::v,               {"@layers.{}.self_attn.v_proj.weight", nullptr, nullptr, "@transformer.blocks.{}.v_proj.weight", "blk.{}.attn_v.weight", "layers.{}.attention.wv"}},
    {Role::q_bias,          {"@layers.{}.self_attn.q_proj.bias", nullptr, nullptr, "@transformer.blocks.{}.q_proj.bias", "blk.{}.attn_q.bias", nullptr}},
    {Role::k_bias,          {"@layers.{}.self_attn.k_proj.bias", nullptr, nullptr, "@transformer.blocks.{}.k_proj.bias", "blk.{}.attn_k.bias", nullptr}},
    {Role::v_bias,          {"@layers.{}.self_attn.v_proj.bias", nullptr, nullptr, "@transformer.blocks.{}.v_proj.bias", "blk.{}.attn_v.bias", nullptr}},
    {Role::q_norm,          {"@layers.{}.self_attn.q_norm.weight", nullptr, nullptr, nullptr, "blk.{}.attn_q_norm.weight", nullptr}},
    {Role::k_norm,          {"@layers.{}.self_attn.k_norm.weight", nullptr, nullptr, nullptr, "blk.{}.attn_k_norm.weight", nullptr}},
    {Role::o,               {"@layers.{}.self_attn.o_proj.weight", "@h.{}.attn.c_proj.weight", "@layers.{}.attention.dense.weight", "@transformer.blocks.{}.attn_out.weight", "blk.{}.attn_output.weight", "layers.{}.attention.wo"}},
    {Role::o_bias,          {"@layers.{}.self_attn.o_proj.bias", "@h.{}.attn.c_proj.bias", "@layers.{}.attention.dense.bias", nullptr, "blk.{}.attn_output.bias", nullptr}},
    {Role::mlp_norm,        {"@layers.{}.post_attention_layernorm.weight", "@h.{}.ln_2.weight", "@layers.{}.post_attention_layernorm.weight", "@transformer.blocks.{}.ff_norm.weight", "blk.{}.ffn_norm.weight", "layers.{}.ffn_norm"}},
    {Role::mlp_norm_bias,   {nullptr, "@h.{}.ln_2.bias", "@layers.{}.post_attention_layernorm.bias", nullptr, "blk.{}.ffn_norm.bias", nullptr}},
    {Role::gate,            {"@layers.{}.mlp.gate_proj.weight", nullptr, nullptr, "@transformer.blocks.{}.ff_proj.weight", "blk.{}.ffn_gate.weight", "layers.{}.feed_forward.w1"}},
    {Role::up,              {"@layers.{}.mlp.up_proj.weight", "@h.{}.mlp.c_fc.weight", "@layers.{}.mlp.dense_h_to_4h.weight", "@transformer.blocks.{}.up_proj.weight", "blk.{}.ffn_up.weight", "layers.{}.feed_forward.w3"}},
    {Role::up_bias,         {nullptr, "@h.{}.mlp.c_fc.bias", "@layers.{}.mlp.dense_h_to_4h.bias", nullptr, "blk.{}.ffn_up.bias", nullptr}},
    {Role::down,            {"@layers.{}.mlp.down_proj.weight", "@h.{}.mlp.c_proj.weight", "@layers.{}.mlp.dense_4h_to_h.weight", "@transformer.blocks.{}.ff_out.weight", "blk.{}.ffn_down.weight", "layers.{}.feed_forward.w2"}},
    {Role::down_bias,       {nullptr, "@h.{}.mlp.c_proj.bias", "@layers.{}.mlp.dense_4h_to_h.bias", nullptr, "blk.{}.ffn_down.bias", nullptr}},
    {Role::final_norm,      {"@norm.weight", "@ln_f.weight", "@final_layer_norm.weight", "@transformer.ln_f.weight", "output_norm.weight", "norm"}},
    {Role::final_norm_bias, {nullptr, "@ln_f.bias", "@final_layer_norm.bias", nullptr, "output_norm.bias", nullptr}},
    {Role::head,            {"lm_head.weight", "lm_head.weight", "embed_out.weight|lm_head.weight", "@transformer.ff_out.weight", "output.weight", "output"}},
    {Role::qkv,             {nullptr, "@h.{}.attn.c_attn.weight", "@layers.{}.attention.query_key_value.weight", nullptr, "blk.{}.attn_qkv.weight", nullptr}},
    {Role::qkv_bias,        {nullptr, "@h.{}.attn.c_attn.bias", "@layers.{}.attention.query_key_value.bias", nullptr, "blk.{}.attn_qkv.bias", nullptr}},
    {Role::rope_freqs,      {nullptr, nullptr, nullptr, nullptr, "rope_freqs.weight", nullptr}},
};
// clang-format on

const Row& row_of(Role role) {
    const auto index = static_cast<std::size_t>(role);
    MR_CHECK(index < std::size(kTable) && kTable[index].role == role, "the table follows the enum");
    return kTable[index];
}

std::string with_layer(std::string_view pattern, int layer) {
    std::string out(pattern);
    if (const auto at = out.find("{}"); at != std::string::npos) {
        out.replace(at, 2, std::to_string(layer));
    }
    return out;
}

}  // namespace

std::span<const FamilyNames> family_names() { return kFamilyNames; }

const FamilyNames& names_of_family(const std::string& family) {
    const auto* found =
        std::find_if(std::begin(kFamilyNames), std::end(kFamilyNames),
                     [&](const FamilyNames& names) { return family == names.family; });
    MR_CHECK(found != std::end(kFamilyNames), "every family is in the table of names");
    return *found;
}

std::string listed_families(const char* FamilyNames::*column) {
    std::vector<std::string> names;
    for (const FamilyNames& row : kFamilyNames) {
        const std::string name = row.*column;
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    const std::string last = names.back();
    names.pop_back();
    return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

Dialect huggingface_dialect(const std::string& family) {
    if (family == "gpt2") return Dialect::hf_gpt2;
    if (family == "gpt-neox") return Dialect::hf_neox;
    if (family == "llada") return Dialect::hf_llada;
    return Dialect::hf_llama;
}

bool is_per_layer(Role role) {
    return std::strstr(row_of(role).names[static_cast<std::size_t>(Dialect::gguf)], "{}") !=
           nullptr;
}

bool is_norm_weight(Role role) {
    return role == Role::attn_norm || role == Role::mlp_norm || role == Role::final_norm ||
           role == Role::q_norm || role == Role::k_norm;
}

bool is_matrix(Role role) {
    switch (role) {
        case Role::embedding:
        case Role::positions:
        case Role::q:
        case Role::k:
        case Role::v:
        case Role::o:
        case Role::gate:
        case Role::up:
        case Role::down:
        case Role::head:
        case Role::qkv:
            return true;
        default:
            return false;
    }
}

std::vector<RoleAt> roles_of(const ModelSpec& spec) {
    std::vector<RoleAt> out;
    const auto add = [&out](bool present, Role role, int layer = -1) {
        if (present) out.push_back({role, layer});
    };
    add(true, Role::embedding);
    add(spec.learned_positions, Role::positions);
    for (int layer = 0; layer < spec.layers; ++layer) {
        const LayerSpec of = spec.layer(layer);
        const bool layer_norm = of.norm == NormKind::layer;
        add(true, Role::attn_norm, layer);
        add(layer_norm, Role::attn_norm_bias, layer);
        add(true, Role::q, layer);
        add(spec.qkv_bias, Role::q_bias, layer);
        add(true, Role::k, layer);
        add(spec.qkv_bias, Role::k_bias, layer);
        add(true, Role::v, layer);
        add(spec.qkv_bias, Role::v_bias, layer);
        add(of.qk_norm, Role::q_norm, layer);
        add(of.qk_norm, Role::k_norm, layer);
        add(true, Role::o, layer);
        add(spec.out_bias, Role::o_bias, layer);
        add(true, Role::mlp_norm, layer);
        add(layer_norm, Role::mlp_norm_bias, layer);
        add(of.gated, Role::gate, layer);
        add(true, Role::up, layer);
        add(spec.mlp_bias, Role::up_bias, layer);
        add(true, Role::down, layer);
        add(spec.mlp_bias, Role::down_bias, layer);
    }
    add(true, Role::final_norm);
    add(spec.norm == NormKind::layer, Role::final_norm_bias);
    add(!spec.tied_embeddings, Role::head);
    return out;
}

Shape role_shape(const ModelSpec& spec, Role role) {
    switch (role) {
        case Role::embedding:
        case Role::head:
            return {spec.vocab, spec.dim};
        case Role::positions:
            return {spec.context, spec.dim};
        case Role::q:
            return {spec.q_dim(), spec.dim};
        case Role::k:
        case Role::v:
            return {spec.kv_dim(), spec.dim};
        case Role::qkv:
            return {spec.q_dim() + 2 * spec.kv_dim(), spec.dim};
        case Role::q_bias:
            return {spec.q_dim()};
        case Role::k_bias:
        case Role::v_bias:
            return {spec.kv_dim()};
        case Role::qkv_bias:
            return {spec.q_dim() + 2 * spec.kv_dim()};
        case Role::q_norm:
        case Role::k_norm:
            return {spec.head_dim};
        case Role::o:
            return {spec.dim, spec.q_dim()};
        case Role::gate:
        case Role::up:
            return {spec.hidden, spec.dim};
        case Role::up_bias:
            return {spec.hidden};
        case Role::down:
            return {spec.dim, spec.hidden};
        case Role::rope_freqs:
            return {spec.rope.rotary / 2};
        case Role::attn_norm:
        case Role::attn_norm_bias:
        case Role::o_bias:
        case Role::mlp_norm:
        case Role::mlp_norm_bias:
        case Role::down_bias:
        case Role::final_norm:
        case Role::final_norm_bias:
            return {spec.dim};
        case Role::kCount:
            break;
    }
    MR_CHECK(false, "a role has a shape");
    return {};
}

Tensor& role_slot(Weights& weights, RoleAt at) {
    const auto layer = [&]() -> LayerWeights& {
        return weights.layers.at(static_cast<std::size_t>(at.layer));
    };
    switch (at.role) {
        case Role::embedding:
            return weights.embedding;
        case Role::positions:
            return weights.positions;
        case Role::attn_norm:
            return layer().attn_norm;
        case Role::attn_norm_bias:
            return layer().attn_norm_bias;
        case Role::q:
            return layer().q;
        case Role::k:
            return layer().k;
        case Role::v:
            return layer().v;
        case Role::q_bias:
            return layer().q_bias;
        case Role::k_bias:
            return layer().k_bias;
        case Role::v_bias:
            return layer().v_bias;
        case Role::q_norm:
            return layer().q_norm;
        case Role::k_norm:
            return layer().k_norm;
        case Role::o:
            return layer().o;
        case Role::o_bias:
            return layer().o_bias;
        case Role::mlp_norm:
            return layer().mlp_norm;
        case Role::mlp_norm_bias:
            return layer().mlp_norm_bias;
        case Role::gate:
            return layer().gate;
        case Role::up:
            return layer().up;
        case Role::up_bias:
            return layer().up_bias;
        case Role::down:
            return layer().down;
        case Role::down_bias:
            return layer().down_bias;
        case Role::final_norm:
            return weights.final_norm;
        case Role::final_norm_bias:
            return weights.final_norm_bias;
        case Role::head:
            return weights.head;
        case Role::qkv:
        case Role::qkv_bias:
        case Role::rope_freqs:
        case Role::kCount:
            break;
    }
    MR_CHECK(false, "the role has a place in Weights");
    return weights.embedding;
}

const Tensor& role_slot(const Weights& weights, RoleAt at) {
    return role_slot(const_cast<Weights&>(weights), at);
}

std::vector<std::string> tensor_names(Dialect dialect, RoleAt at) {
    const auto index = static_cast<std::size_t>(dialect);
    std::vector<std::string> out;
    const char* entry = row_of(at.role).names[index];
    if (!entry) return out;
    std::string_view rest = entry;
    while (!rest.empty()) {
        const std::string_view name = rest.substr(0, rest.find('|'));
        rest.remove_prefix(std::min(rest.size(), name.size() + 1));
        if (name.front() == '@') {
            out.push_back(kPrefix[index] + with_layer(name.substr(1), at.layer));
            out.push_back(with_layer(name.substr(1), at.layer));
        } else {
            out.push_back(with_layer(name, at.layer));
        }
    }
    return out;
}

DialectLayout dialect_layout(Dialect dialect, const std::string& family) {
    using Qkv = DialectLayout::Qkv;
    switch (dialect) {
        case Dialect::hf_gpt2:
            return {.transposed = true, .qkv = Qkv::stacked};
        case Dialect::hf_neox:
            return {.qkv = Qkv::by_head};
        case Dialect::gguf: {
            // llama.cpp rotates neighbours in these architectures, halves in all others.
            const bool neighbours = family == "llama" || family == "mistral" || family == "llada";
            return {.qkv = family == "gpt2" || family == "gpt-neox" ? Qkv::stacked : Qkv::separate,
                    .rope = neighbours ? ops::RopeStyle::interleaved : ops::RopeStyle::half};
        }
        case Dialect::llama2c:
            return {.rope = ops::RopeStyle::interleaved};
        case Dialect::hf_llama:
        case Dialect::hf_llada:
            break;
    }
    return {};
}

bool is_known_buffer(const std::string& name) {
    for (std::string_view suffix : {"rotary_emb.inv_freq", "attn.bias", "attn.masked_bias",
                                    "attention.bias", "attention.masked_bias"}) {
        if (name.ends_with(suffix)) return true;
    }
    return false;
}

}  // namespace mr::model
