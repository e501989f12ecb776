#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/mapped_file.h"
#include "formats/safetensors.h"
#include "model/io/source.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/spoiled_folder.h"

namespace mr::model {
namespace {

using nlohmann::json;
using Scaling = RopeSpec::Scaling;

TEST(LoadHuggingFace, Llama2) {
    const Model model = load_model(reference("llama2"));
    const ModelSpec& spec = model.spec;
    EXPECT_EQ(spec.family, "llama");
    EXPECT_EQ(spec.name, "llama2");
    EXPECT_EQ(spec.vocab, 288);
    EXPECT_EQ(spec.dim, 32);
    EXPECT_EQ(spec.layers, 2);
    EXPECT_EQ(spec.heads, 4);
    EXPECT_EQ(spec.kv_heads, 2);
    EXPECT_EQ(spec.head_dim, 8);
    EXPECT_EQ(spec.hidden, 64);
    EXPECT_EQ(spec.context, 64);
    EXPECT_EQ(spec.norm, NormKind::rms);
    EXPECT_EQ(spec.norm_eps, 1e-5f);
    EXPECT_TRUE(spec.tied_embeddings);
    EXPECT_TRUE(spec.gated);
    EXPECT_FALSE(spec.qkv_bias);
    EXPECT_EQ(spec.rope.rotary, 8);
    EXPECT_EQ(spec.rope.style, ops::RopeStyle::half);
    EXPECT_EQ(spec.rope.scaling, Scaling::none);
    EXPECT_EQ(spec.activation, ops::Activation::silu);
    ASSERT_TRUE(model.tokenizer);
    EXPECT_EQ(model.tokenizer->vocab_size(), 288);
    EXPECT_EQ(model.format, "safetensors");
    EXPECT_GT(model.weights.mapped_bytes, 0u);
    // Only norms are owned: 5 of 32 floats.
    EXPECT_EQ(model.weights.owned_bytes, 5u * 32 * 4);
    expect_shapes_match(model);
}

TEST(LoadHuggingFace, EveryReferenceHasTheRightSpec) {
    const std::vector<std::pair<const char*, std::function<void(const ModelSpec&)>>> cases = {
        {"llama3",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.rope.scaling, Scaling::llama3);
             EXPECT_EQ(s.rope.factor, 8);
             EXPECT_EQ(s.rope.low_freq_factor, 1);
             EXPECT_EQ(s.rope.high_freq_factor, 4);
             EXPECT_EQ(s.rope.original_context, 64);
             EXPECT_EQ(s.rope.theta, 500000);
             EXPECT_EQ(s.head_dim, 16);
             EXPECT_FALSE(s.tied_embeddings);
         }},
        {"llama-linear",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.rope.scaling, Scaling::linear);
             EXPECT_EQ(s.rope.factor, 4);
             EXPECT_EQ(s.norm_eps, 0.01f);
         }},
        {"llama-yarn",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.rope.scaling, Scaling::yarn);
             EXPECT_EQ(s.rope.factor, 4);
             EXPECT_EQ(s.rope.original_context, 64);
             EXPECT_EQ(s.rope.attention_factor, 1.25);
             EXPECT_EQ(s.rope.beta_fast, 2);
             EXPECT_EQ(s.rope.beta_slow, 0.25);
         }},
        {"mistral",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.family, "mistral");
             EXPECT_EQ(s.mask.window, 12);
         }},
        {"qwen2",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.family, "qwen2");
             EXPECT_TRUE(s.qkv_bias);
             EXPECT_FALSE(s.out_bias);
             EXPECT_TRUE(s.tied_embeddings);
             EXPECT_EQ(s.norm_eps, 1e-6f);
             EXPECT_EQ(s.rope.theta, 1000000);
             EXPECT_EQ(s.mask.window, 0);
         }},
        {"qwen2-yarn",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.rope.scaling, Scaling::yarn);
             EXPECT_EQ(s.rope.attention_factor, 0);
             EXPECT_EQ(s.rope.original_context, 64);
         }},
        {"qwen3",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.family, "qwen3");
             EXPECT_TRUE(s.qk_norm);
             EXPECT_FALSE(s.qkv_bias);
             EXPECT_EQ(s.head_dim, 16);
             EXPECT_EQ(s.q_dim(), 64);
         }},
        {"gpt2",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.family, "gpt2");
             EXPECT_EQ(s.norm, NormKind::layer);
             EXPECT_EQ(s.activation, ops::Activation::gelu_tanh);
             EXPECT_FALSE(s.gated);
             EXPECT_TRUE(s.learned_positions && s.tied_embeddings);
             EXPECT_TRUE(s.qkv_bias && s.out_bias && s.mlp_bias);
             EXPECT_EQ(s.rope.rotary, 0);
             EXPECT_EQ(s.hidden, 64);
         }},
        {"gpt2-hub",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.layers, 1);
             EXPECT_EQ(s.context, 40);
         }},
        {"gpt-neox",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.family, "gpt-neox");
             EXPECT_EQ(s.residual, Residual::parallel);
             EXPECT_EQ(s.activation, ops::Activation::gelu);
             EXPECT_EQ(s.head_dim, 16);
             EXPECT_EQ(s.rope.rotary, 4);
             EXPECT_FALSE(s.tied_embeddings);
         }},
        {"gpt-neox-seq",
         [](const ModelSpec& s) {
             EXPECT_EQ(s.residual, Residual::sequential);
             EXPECT_EQ(s.rope.rotary, 4);
         }},
    };
    for (const auto& [name, check] : cases) {
        SCOPED_TRACE(name);
        const Model model = load_model(reference(name));
        check(model.spec);
        expect_shapes_match(model);
    }
}

TEST(LoadHuggingFace, Gpt2MatricesAreTransposed) {
    const Model model = load_model(reference("gpt2"));
    const auto file = formats::SafetensorsFile::open(reference("gpt2"));
    const Tensor fused = file.find_tensor("transformer.h.1.attn.c_attn.weight")->view;  // [32, 96]
    const Tensor bias = file.find_tensor("transformer.h.1.attn.c_attn.bias")->view;
    const LayerWeights& layer = model.weights.layers[1];
    const Tensor parts[] = {layer.q, layer.k, layer.v};
    const Tensor biases[] = {layer.q_bias, layer.k_bias, layer.v_bias};
    for (int part = 0; part < 3; ++part) {
        for (int out = 0; out < 32; ++out) {
            for (int in = 0; in < 32; ++in) {
                ASSERT_EQ(parts[part].f32(out)[in], fused.f32(in)[part * 32 + out]);
            }
            ASSERT_EQ(biases[part].f32()[out], bias.f32()[part * 32 + out]);
        }
    }
    const Tensor up = file.find_tensor("transformer.h.1.mlp.c_fc.weight")->view;  // [32, 64]
    for (int out = 0; out < 64; ++out) {
        for (int in = 0; in < 32; ++in) ASSERT_EQ(layer.up.f32(out)[in], up.f32(in)[out]);
    }
}

TEST(LoadHuggingFace, NeoxHeadsAreTakenApart) {
    const Model model = load_model(reference("gpt-neox"));
    const auto file = formats::SafetensorsFile::open(reference("gpt-neox"));
    const Tensor fused =
        file.find_tensor("gpt_neox.layers.1.attention.query_key_value.weight")->view;
    const Tensor bias = file.find_tensor("gpt_neox.layers.1.attention.query_key_value.bias")->view;
    const LayerWeights& layer = model.weights.layers[1];
    const Tensor parts[] = {layer.q, layer.k, layer.v};
    const Tensor biases[] = {layer.q_bias, layer.k_bias, layer.v_bias};
    for (int head = 0; head < 2; ++head) {
        for (int part = 0; part < 3; ++part) {
            for (int d = 0; d < 16; ++d) {
                const int row = (head * 3 + part) * 16 + d;
                ASSERT_EQ(std::memcmp(parts[part].f32(head * 16 + d), fused.f32(row), 32 * 4), 0);
                ASSERT_EQ(biases[part].f32()[head * 16 + d], bias.f32()[row]);
            }
        }
    }
}

// transformers decides by model_type, and rotates whole heads in these families.
TEST(LoadHuggingFace, ContradictionsAreReadAsTransformersDoesAndNoted) {
    struct Case {
        const char* folder;
        std::function<void(json&)> change;
        const char* says;
    };
    const std::vector<Case> cases = {
        {"qwen2", [](json& c) { c["architectures"] = {"LlamaForCausalLM"}; }, "model_type"},
        {"llama2", [](json& c) { c["architectures"] = {"MyForCausalLM"}; }, "MyForCausalLM"},
        {"llama2", [](json& c) { c["partial_rotary_factor"] = 0.5; }, "partial_rotary_factor"},
    };
    for (const Case& test : cases) {
        SCOPED_TRACE(test.says);
        Spoiled model(test.folder);
        test.change(model.config);
        const Model read = load_model(model.path());
        const Model plain = load_model(reference(test.folder));
        EXPECT_EQ(read.spec.family, plain.spec.family);
        EXPECT_EQ(read.spec.rope.rotary, plain.spec.rope.rotary);
        ASSERT_EQ(read.notes.size(), 1u);
        EXPECT_NE(read.notes[0].find(test.says), std::string::npos) << read.notes[0];
        EXPECT_TRUE(plain.notes.empty());
    }
}

TEST(LoadHuggingFace, AnotherHeadThanTheEmbeddingIsUsedThoughTheConfigurationTiesThem) {
    Spoiled model("llama3");
    model.config["tie_word_embeddings"] = true;
    const Model read = load_model(model.path()), plain = load_model(reference("llama3"));
    EXPECT_FALSE(read.spec.tied_embeddings);
    EXPECT_EQ(
        std::memcmp(read.weights.head.data, plain.weights.head.data, plain.weights.head.bytes()),
        0);
    ASSERT_EQ(read.notes.size(), 1u);
    EXPECT_NE(read.notes[0].find("lm_head.weight"), std::string::npos) << read.notes[0];
    EXPECT_TRUE(planned_model(model.path()).weights.head.shape == plain.weights.head.shape);
}

TEST(LoadHuggingFace, BadConfigurationsAreNamed) {
    struct Case {
        const char* folder;
        std::function<void(json&)> spoil;
        std::vector<const char*> says;
    };
    const std::vector<Case> cases = {
        {"llama2",
         [](json& c) {
             c["architectures"] = {"MambaForCausalLM"};
             c.erase("model_type");
         },
         {"config.json", "architectures", "MambaForCausalLM", "LlamaForCausalLM"}},
        {"llama2",
         [](json& c) { c["architectures"] = {"LlamaForSequenceClassification"}; },
         {"architectures", "LlamaForSequenceClassification"}},
        {"llama2", [](json& c) { c["model_type"] = "mamba"; }, {"model_type", "mamba"}},
        {"llama2",
         [](json& c) {
             c.erase("architectures");
             c.erase("model_type");
         },
         {"architectures", "missing", "model_type"}},
        {"llama2",
         [](json& c) {
             c.erase("architectures");
             c["model_type"] = "mamba";
         },
         {"model_type", "mamba"}},
        {"llama2", [](json& c) { c["architectures"] = 7; }, {"architectures"}},
        {"llama2", [](json& c) { c.erase("hidden_size"); }, {"hidden_size", "missing"}},
        {"llama2", [](json& c) { c["hidden_size"] = nullptr; }, {"hidden_size", "missing"}},
        {"llama2", [](json& c) { c["hidden_size"] = "32"; }, {"hidden_size", "\"32\""}},
        {"llama2", [](json& c) { c["hidden_size"] = -32; }, {"hidden_size", "-32"}},
        {"llama2", [](json& c) { c["hidden_size"] = 1e300; }, {"hidden_size"}},
        {"llama2", [](json& c) { c["num_hidden_layers"] = 2.5; }, {"num_hidden_layers", "2.5"}},
        {"llama2", [](json& c) { c["num_hidden_layers"] = 0; }, {"layers", "0"}},
        {"llama2", [](json& c) { c["num_attention_heads"] = 0; }, {"num_attention_heads"}},
        {"llama2", [](json& c) { c["num_key_value_heads"] = 3; }, {"num_key_value_heads", "3"}},
        {"llama2", [](json& c) { c["head_dim"] = 7; }, {"rotary", "7"}},
        {"llama2", [](json& c) { c["hidden_act"] = "mish"; }, {"hidden_act", "mish", "silu"}},
        {"llama2", [](json& c) { c["rms_norm_eps"] = "small"; }, {"rms_norm_eps", "small"}},
        {"llama2", [](json& c) { c["rms_norm_eps"] = -1; }, {"norm epsilon", "-1"}},
        {"llama2", [](json& c) { c["tie_word_embeddings"] = 1; }, {"tie_word_embeddings"}},
        {"llama2", [](json& c) { c["mlp_bias"] = true; }, {"mlp_bias"}},
        {"llama2",
         [](json& c) {
             c["quantization_config"] = {{"quant_method", "gptq"}};
         },
         {"quantization_config", "gptq"}},
        {"llama2",
         [](json& c) { c["rope_parameters"]["rope_type"] = "longrope"; },
         {"rope_parameters.rope_type", "longrope", "yarn"}},
        {"llama2", [](json& c) { c["rope_parameters"] = 5; }, {"rope_parameters", "object"}},
        {"llama2",
         [](json& c) {
             c["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
         },
         {"rope_parameters.full_attention", "layer"}},
        {"llama-linear",
         [](json& c) { c["rope_scaling"].erase("factor"); },
         {"rope_scaling.factor", "missing"}},
        {"llama-linear", [](json& c) { c["rope_scaling"]["factor"] = 0; }, {"rope factor", "0"}},
        {"llama-linear", [](json& c) { c["rope_theta"] = -1; }, {"rope theta", "-1"}},
        {"llama-yarn", [](json& c) { c["rope_parameters"]["truncate"] = false; }, {"truncate"}},
        {"gpt-neox", [](json& c) { c["rotary_pct"] = 1.5; }, {"rotary_pct", "1.5"}},
        {"gpt2", [](json& c) { c["n_head"] = 5; }, {"n_head", "5"}},
        {"gpt2", [](json& c) { c["n_embd"] = 1 << 29; }, {"n_embd", "536870912"}},
        {"gpt2", [](json& c) { c["n_embd"] = 1 << 28; }, {"width", "268435456"}},
        {"gpt2",
         [](json& c) { c["scale_attn_by_inverse_layer_idx"] = true; },
         {"scale_attn_by_inverse_layer_idx"}},
        {"qwen2",
         [](json& c) {
             c["use_sliding_window"] = true;
             c["sliding_window"] = 16;
             c["layer_types"] = {"full_attention", "chunked_attention"};
         },
         {"layer_types", "chunked_attention", "supported are full_attention"}},
        {"qwen2-window",
         [](json& c) { c["use_sliding_window"] = false; },
         {"layer_types", "there is no sliding window"}},
        {"mistral",
         [](json& c) {
             c["layer_types"] = {"full_attention", "sliding_attention"};
         },
         {"layer_types", "must slide, or none"}},
        {"qwen3",
         [](json& c) {
             c["use_sliding_window"] = true;
             c["sliding_window"] = 16;
             c["layer_types"] = {"full_attention", "sliding_attention"};
         },
         {"layer_types", "must name the 1 layers"}},
        // Configurations that contradict the tensors.
        {"llama2",
         [](json& c) { c["vocab_size"] = 300; },
         {"model.safetensors", "model.embed_tokens.weight", "[288, 32]", "[300, 32]"}},
        {"llama2",
         [](json& c) { c["intermediate_size"] = 96; },
         {"mlp.gate_proj.weight", "[64, 32]", "[96, 32]"}},
        {"llama2", [](json& c) { c["num_hidden_layers"] = 3; }, {"model.layers.2.", "no such"}},
        {"llama2",
         [](json& c) { c["num_hidden_layers"] = 1; },
         {"model.layers.1.", "1 layers has no such tensor"}},
        {"llama2",
         [](json& c) { c["tie_word_embeddings"] = false; },
         {"lm_head.weight", "no such"}},
        {"llama2",
         [](json& c) { c["attention_bias"] = true; },
         {"self_attn.q_proj.bias", "no such"}},
        {"qwen2", [](json& c) { c["model_type"] = "llama"; }, {".bias", "has no such tensor"}},
        {"gpt2", [](json& c) { c["n_inner"] = 128; }, {"mlp.c_fc.weight", "[32, 64]", "[32, 128]"}},
        {"gpt-neox", [](json& c) { c["attention_bias"] = false; }, {".bias", "no such tensor"}},
    };
    for (const Case& test : cases) {
        Spoiled model(test.folder);
        test.spoil(model.config);
        const std::string said = error_of([&] { load_model(model.path()); });
        for (const char* part : test.says) {
            EXPECT_NE(said.find(part), std::string::npos)
                << test.folder << ": \"" << part << "\" is not in: " << said;
        }
    }
}

// The windows of all layers.
std::vector<int> windows(const std::string& path) {
    std::vector<int> out;
    for (const LayerSpec& layer : load_model(path).spec.layer_specs()) {
        out.push_back(layer.mask.window);
    }
    return out;
}

TEST(LoadHuggingFace, SlidingWindowsOfSomeLayers) {
    Spoiled model("qwen2-window");
    EXPECT_EQ(windows(model.path()), (std::vector<int>{0, 12, 0, 12}));
    model.config["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                                   "sliding_attention"};
    EXPECT_EQ(windows(model.path()), (std::vector<int>{12, 0, 0, 12}));
    // Before layer_types existed, the layers from max_window_layers on had windows.
    model.config.erase("layer_types");
    EXPECT_EQ(windows(model.path()), (std::vector<int>{0, 0, 0, 0}));  // 28
    model.config["max_window_layers"] = 1;
    EXPECT_EQ(windows(model.path()), (std::vector<int>{0, 12, 12, 12}));
    // Layers with a window keep the common values.
    EXPECT_EQ(load_model(model.path()).spec.layer(3).norm_eps, 1e-6f);
    model.config["max_window_layers"] = 0;
    EXPECT_EQ(windows(model.path()), (std::vector<int>{12, 12, 12, 12}));
    EXPECT_TRUE(load_model(model.path()).spec.own.empty());
    model.config["use_sliding_window"] = false;
    EXPECT_EQ(windows(model.path()), (std::vector<int>{0, 0, 0, 0}));
}

TEST(LoadHuggingFace, SlidingWindowsOfAllLayersOrOfNone) {
    Spoiled model("qwen2");
    model.config["use_sliding_window"] = true;
    model.config["sliding_window"] = 16;
    model.config["max_window_layers"] = 0;
    EXPECT_EQ(load_model(model.path()).spec.mask.window, 16);
    model.config["max_window_layers"] = 2;
    EXPECT_EQ(load_model(model.path()).spec.mask.window, 0);
    // A mixture is harmless if the window is as long as the context.
    model.config["max_window_layers"] = 1;
    model.config["sliding_window"] = 64;
    EXPECT_EQ(load_model(model.path()).spec.mask.window, 0);
    model.config["use_sliding_window"] = false;
    model.config["sliding_window"] = 16;
    EXPECT_EQ(load_model(model.path()).spec.mask.window, 0);
}

TEST(LoadHuggingFace, FoldersThatAreNoModel) {
    TempFolder empty;
    EXPECT_NE(error_of([&] { load_model(empty.path()); }).find("config.json"), std::string::npos);
    Spoiled model("llama2");
    const std::string path = model.path();
    fs::remove(model.folder() / "model.safetensors");
    EXPECT_NE(error_of([&] { load_model(path); }).find("model.safetensors"), std::string::npos);
    std::ofstream(model.folder() / "config.json") << "{\"architectures\": [";
    EXPECT_NE(error_of([&] { load_model(path); }).find("config.json"), std::string::npos);
    EXPECT_NE(error_of([] { load_model("/nowhere/at/all.gguf"); }).find("/nowhere/at/all.gguf"),
              std::string::npos);
    std::ofstream(empty / "notes.txt") << "not a model";
    EXPECT_NE(error_of([&] { load_model(empty / "notes.txt"); }).find("not a model"),
              std::string::npos);
}

TEST(LoadHuggingFace, ATokenizerLargerThanTheEmbeddingIsRefused) {
    Spoiled model("llama3");  // vocabulary 48
    const std::string path = model.path();
    LoadOptions options;
    options.tokenizer = reference("llama2/tokenizer.json");
    const std::string said = error_of([&] { load_model(path, options); });
    EXPECT_NE(said.find("288"), std::string::npos) << said;
    EXPECT_NE(said.find("48"), std::string::npos) << said;
}
}  // namespace
}  // namespace mr::model
