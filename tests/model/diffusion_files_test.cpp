// Files of diffusion models: reading, writing, and errors.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/io/convert.h"
#include "model/io/convert_formats.h"
#include "model/io/load_diffusion.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "model/model_files.h"
#include "model/spoiled_folder.h"

namespace mr::model {
namespace {

using Kind = ops::AttentionMask::Kind;
using nlohmann::json;

void expect_says(const std::string& said, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(said.find(word), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
}

TEST(DiffusionFiles, SpecsOfTheFolders) {
    const ModelSpec sdar = load_model(reference("sdar")).spec;
    EXPECT_EQ(sdar.family, "sdar");
    EXPECT_EQ(sdar.diffusion, (DiffusionSpec{.mask = 47, .block = 16}));
    EXPECT_EQ(sdar.mask.kind, Kind::block_causal);
    EXPECT_EQ(sdar.mask.block, 16);
    EXPECT_TRUE(sdar.qk_norm);
    EXPECT_EQ(sdar.head_dim, 16);
    EXPECT_FALSE(load_model(reference("sdar-llama")).spec.qk_norm);

    const ModelSpec fast = load_model(reference("fast-dllm")).spec;
    EXPECT_EQ(fast.family, "fast-dllm");
    EXPECT_EQ(fast.diffusion,
              (DiffusionSpec{.mask = 47, .block = 32, .sub_block = 8, .shifted = true}));
    EXPECT_TRUE(fast.qkv_bias);
    EXPECT_FALSE(fast.out_bias);

    const ModelSpec llada = load_model(reference("llada")).spec;
    EXPECT_EQ(llada.family, "llada");
    EXPECT_EQ(llada.diffusion, (DiffusionSpec{.mask = 47}));
    EXPECT_EQ(llada.mask.kind, Kind::full);
    EXPECT_EQ(llada.vocab, 48);  // embedding_size; vocab_size is 46
    EXPECT_EQ(llada.kv_heads, 2);
    EXPECT_EQ(llada.hidden, 32);
    EXPECT_EQ(llada.context, 64);
    EXPECT_EQ(llada.rope.theta, 500000);
    EXPECT_FALSE(llada.tied_embeddings);

    const ModelSpec dream = load_model(reference("dream")).spec;
    EXPECT_EQ(dream.family, "dream");
    EXPECT_EQ(dream.diffusion, (DiffusionSpec{.mask = 47, .shifted = true}));
    EXPECT_EQ(dream.mask.kind, Kind::full);
    for (const char* name : {"sdar", "sdar-llama", "fast-dllm", "llada", "dream"}) {
        expect_shapes_match(load_model(reference(name)));
    }
}

// Published configurations omit some keys.
TEST(DiffusionFiles, PublishedValuesWhereTheConfigurationHasNone) {
    std::vector<std::string> notes;
    const auto read = [&](const char* family, int vocab, const char* text) {
        const auto document = formats::JsonDocument::parse(text, "config.json");
        ModelSpec spec;
        spec.family = family;
        spec.vocab = vocab;
        notes.clear();
        read_diffusion(Config(document.root(), "config.json"), spec, notes);
        return *spec.diffusion;
    };
    const DiffusionSpec fast{.mask = 151665, .block = 32, .sub_block = 8, .shifted = true};
    EXPECT_EQ(read("fast-dllm", 152064, R"({"bd_size": 32})"), fast);
    EXPECT_EQ(read("fast-dllm", 152064, "{}"), fast);
    // Parts are not longer than the block.
    EXPECT_EQ(read("fast-dllm", 152064, R"({"bd_size": 4})").sub_block, 4);
    EXPECT_EQ(read("dream", 152064, "{}"), (DiffusionSpec{.mask = 151666, .shifted = true}));
    EXPECT_TRUE(notes.empty());
    EXPECT_EQ(read("sdar", 151936, R"({"block_size": 16})"),
              (DiffusionSpec{.mask = 151669, .block = 16}));
    EXPECT_TRUE(notes.empty());
    EXPECT_EQ(read("sdar", 151936, "{}"), (DiffusionSpec{.mask = 151669, .block = 4}));
    ASSERT_EQ(notes.size(), 1u);  // another model may have been trained with larger ones
    EXPECT_NE(notes[0].find("block_size: assuming 4"), std::string::npos) << notes[0];
    // A vocabulary without such a token belongs to another model.
    for (const char* family : {"sdar", "fast-dllm", "dream", "llada"}) {
        expect_says(error_of([&] { read(family, 50000, R"({"block_size": 4})"); }),
                    {"config.json", "mask_token_id", "missing"});
    }
    expect_says(error_of([&] { read("llada", 152064, "{}"); }), {"mask_token_id", "missing"});
    expect_says(error_of([&] { read("sdar", 50000, R"({"mask_token_id": 4})"); }),
                {"block_size", "missing"});
}

TEST(DiffusionFiles, BadConfigurationsAreOneLine) {
    struct Case {
        const char* model;
        const char* key;
        json value;  // null: missing
        std::vector<std::string> says;
    };
    const Case cases[] = {
        {"sdar", "mask_token_id", nullptr, {"mask_token_id", "missing"}},
        {"fast-dllm", "mask_token_id", nullptr, {"mask_token_id", "missing"}},
        {"llada", "mask_token_id", nullptr, {"mask_token_id", "missing"}},
        {"dream", "mask_token_id", nullptr, {"mask_token_id", "missing"}},
        {"sdar", "mask_token_id", 48, {"mask token", "48", "0 to 47"}},
        {"dream", "mask_token_id", 151666, {"mask token", "151666", "0 to 47"}},
        {"llada", "mask_token_id", -1, {"mask_token_id", "-1"}},
        {"sdar", "block_size", nullptr, {"block_size", "missing"}},
        {"sdar", "block_size", 0, {"block_size", "at least 1"}},
        {"sdar", "block_size", 65, {"block", "65", "the context, 64"}},
        {"fast-dllm", "bd_size", 0, {"bd_size", "at least 1"}},
        {"fast-dllm", "bd_size", 128, {"block", "128", "the context, 64"}},
        {"fast-dllm", "bd_size", 20, {"sub-block", "8", "the block of 20"}},
        {"fast-dllm", "sub_block_size", 5, {"sub-block", "5", "the block of 32"}},
        {"fast-dllm", "sub_block_size", 0, {"sub_block_size", "at least 1"}},
        // LLaDA's code supports more than its models use.
        {"llada", "block_type", "sequential", {"block_type", "sequential", "llama"}},
        {"llada", "layer_norm_type", "default", {"layer_norm_type", "rms"}},
        {"llada", "activation_type", "swiglu", {"activation_type", "silu"}},
        {"llada", "rope", nullptr, {"rope", "true"}},
        {"llada", "alibi", true, {"alibi", "false"}},
        {"llada", "include_bias", true, {"include_bias"}},
        {"llada", "bias_for_layer_norm", true, {"bias_for_layer_norm"}},
        {"llada", "layer_norm_with_affine", false, {"layer_norm_with_affine"}},
        {"llada", "attention_layer_norm", true, {"attention_layer_norm"}},
        {"llada", "input_emb_norm", true, {"input_emb_norm"}},
        {"llada", "scale_logits", true, {"scale_logits"}},
        {"llada", "block_group_size", 2, {"block_group_size"}},
        {"llada", "embedding_size", 45, {"embedding_size", "46"}},
        {"llada", "n_heads", 3, {"n_heads", "32"}},
        {"llada", "n_layers", nullptr, {"n_layers", "missing"}},
        {"llada", "n_layers", 100000000, {"layers", "4096"}},
        {"llada", "mlp_hidden_size", 0, {"hidden size"}},
        // Keys of one family are unknown in another.
        {"dream", "block_size", 32, {"--ignore-key block_size"}},
        {"llama2", "block_size", 4, {"--ignore-key block_size"}},
        {"qwen2", "bd_size", 32, {"--ignore-key bd_size"}},
        {"qwen3", "qk_norm", false, {"--ignore-key qk_norm"}},
        {"sdar", "use_relay", true, {"--ignore-key use_relay"}},
        // Related models with other layers.
        {"llada", "architectures", {"LLaDAMoEModelLM"}, {"LLaDAMoEModelLM", "not supported"}},
        {"sdar", "model_type", "sdar_moe", {"sdar_moe", "names no architecture"}},
        {"llada", "model_type", "llada2_moe", {"llada2_moe", "names no architecture"}},
        {"dream", "model_type", "diffusion_gemma", {"diffusion_gemma", "names no architecture"}},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(std::string(c.model) + " " + c.key);
        Spoiled model(c.model);
        if (c.value.is_null()) {
            model.config.erase(c.key);
        } else {
            model.config[c.key] = c.value;
        }
        std::vector<std::string> says = c.says;
        says.emplace_back("config.json");
        expect_says(error_of([&] { load_model(model.path()); }), says);
    }
    for (const char* name : {"sdar", "fast-dllm", "dream"}) {
        Spoiled model(name);
        model.config["use_sliding_window"] = true;
        model.config["sliding_window"] = 8;
        model.config["layer_types"] = {"full_attention", "sliding_attention"};
        expect_says(error_of([&] { load_model(model.path()); }), {"sliding window"});
    }
}

TEST(DiffusionFiles, LladaHasDefaultsOfItsOwn) {
    Spoiled model("llada");
    for (const char* key : {"mlp_hidden_size", "n_kv_heads", "embedding_size", "include_qkv_bias",
                            "max_sequence_length", "rms_norm_eps", "rope_theta", "alibi"}) {
        model.config.erase(key);
    }
    model.config["mlp_ratio"] = 1;
    model.config["multi_query_attention"] = true;
    model.config["vocab_size"] = 48;
    const auto document =
        formats::JsonDocument::parse(read_text_file(model.path() + "/config.json"), "config.json");
    ModelSpec spec;
    spec.family = "llada";
    spec.vocab = 48;
    std::vector<std::string> notes;
    spec = read_llada(Config(document.root(), "config.json"), spec, notes);
    EXPECT_EQ(spec.hidden, 32);
    EXPECT_EQ(spec.kv_heads, 1);
    EXPECT_EQ(spec.context, 1024);
    EXPECT_EQ(spec.norm_eps, 1e-5f);
    EXPECT_EQ(spec.rope.theta, 10000);
    EXPECT_NO_THROW(spec.validate("config.json"));
}

// The names that llama.cpp reads, and our own beside them.
TEST(DiffusionFiles, KeysAndTensorsOfGguf) {
    const TempFolder folder;
    const auto written = [&](const char* name) {
        const std::string path = folder / (std::string(name) + ".gguf");
        convert_model(reference(name), path, {.type = DType::f32});
        return formats::GgufFile::open(path);
    };
    const auto llada = written("llada");
    EXPECT_EQ(llada.get_string("general.architecture"), "llada");
    EXPECT_EQ(llada.get_bool("llada.attention.causal"), false);
    EXPECT_EQ(llada.get_bool("diffusion.shift_logits"), false);
    EXPECT_EQ(llada.get_uint("tokenizer.ggml.mask_token_id"), 47u);
    EXPECT_EQ(llada.get_uint("llada.embedding_length"), 32u);
    const auto dream = written("dream");
    EXPECT_EQ(dream.get_string("general.architecture"), "dream");
    EXPECT_EQ(dream.get_bool("dream.attention.causal"), false);
    EXPECT_EQ(dream.get_bool("diffusion.shift_logits"), true);
    EXPECT_TRUE(dream.find_tensor("blk.0.attn_q.bias"));
    const auto sdar = written("sdar");
    EXPECT_EQ(sdar.get_string("general.architecture"), "sdar");
    EXPECT_EQ(sdar.get_uint("sdar.diffusion.block_size"), 16u);
    EXPECT_EQ(sdar.get_bool("sdar.attention.qk_norm"), true);
    EXPECT_EQ(sdar.get_bool("diffusion.shift_logits"), false);
    EXPECT_EQ(written("sdar-llama").get_bool("sdar.attention.qk_norm"), false);
    const auto fast = written("fast-dllm");
    EXPECT_EQ(fast.get_string("general.architecture"), "fast-dllm");
    EXPECT_EQ(fast.get_uint("fast-dllm.diffusion.block_size"), 32u);
    EXPECT_EQ(fast.get_uint("fast-dllm.diffusion.sub_block_size"), 8u);

    // llama.cpp rotates neighbours in llada and halves in dream: rows 0 and 4 of a head of 8 rotate
    // together. ff_proj is the gate.
    const auto original = formats::SafetensorsFile::open(reference("llada"));
    const auto* q = original.find_tensor("model.transformer.blocks.1.q_proj.weight");
    const auto* gate = original.find_tensor("model.transformer.blocks.1.ff_proj.weight");
    ASSERT_TRUE(q && gate);
    const int order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int row = 0; row < 32; ++row) {
        EXPECT_EQ(std::memcmp(llada.find_tensor("blk.1.attn_q.weight")->view.f32(row),
                              q->view.f32(row / 8 * 8 + order[row % 8]), 32 * 4),
                  0);
    }
    EXPECT_EQ(std::memcmp(llada.find_tensor("blk.1.ffn_gate.weight")->view.data, gate->view.data,
                          gate->view.bytes()),
              0);
    const auto halves = formats::SafetensorsFile::open(reference("dream"));
    EXPECT_EQ(std::memcmp(dream.find_tensor("blk.1.attn_q.weight")->view.data,
                          halves.find_tensor("model.layers.1.self_attn.q_proj.weight")->view.data,
                          32 * 32 * 4),
              0);
}

// A GGUF of a tiny llama, renamed to a diffusion architecture.
TinyGguf tiny(const std::string& arch) {
    TinyGguf file;
    decltype(file.keys) keys;
    for (const auto& [key, set] : file.keys) {
        keys[key.starts_with("llama.") ? arch + key.substr(5) : key] = set;
    }
    file.keys = keys;
    file.keys["general.architecture"] = TinyGguf::text(arch);
    file.keys["tokenizer.ggml.mask_token_id"] = TinyGguf::u32(1);
    return file;
}

auto boolean(bool value) {
    return [value](formats::GgufWriter& w, const std::string& key) { w.set_bool(key, value); };
}

TEST(DiffusionFiles, GgufOfLlamaCpp) {
    const TempFolder folder;
    const std::string path = folder / "a.gguf";
    const auto spec_of = [&](const TinyGguf& file) {
        file.write(path);
        return load_model(path).spec;
    };
    for (const char* arch : {"llada", "dream"}) {
        SCOPED_TRACE(arch);
        TinyGguf file = tiny(arch);
        // Without the key logits are shifted; full attention is the default.
        EXPECT_EQ(spec_of(file).diffusion, (DiffusionSpec{.mask = 1, .shifted = true}));
        EXPECT_EQ(spec_of(file).mask.kind, Kind::full);
        file.keys["diffusion.shift_logits"] = boolean(false);
        file.keys[std::string(arch) + ".attention.causal"] = boolean(false);
        EXPECT_EQ(spec_of(file).diffusion, (DiffusionSpec{.mask = 1}));
        const std::string folder_out = folder / (std::string(arch) + "-folder");
        if (std::string(arch) == "dream") {  // config.json cannot express this
            expect_says(error_of([&] { convert_model(path, folder_out); }), {"biases"});
        } else {
            convert_model(path, folder_out);
            EXPECT_EQ(load_model(folder_out).spec.diffusion, (DiffusionSpec{.mask = 1}));
        }
        file.keys[std::string(arch) + ".attention.causal"] = boolean(true);
        expect_says(error_of([&] { spec_of(file); }), {std::string(arch) + ".attention.causal"});
    }
}

TEST(DiffusionFiles, BadGgufIsOneLine) {
    const TempFolder folder;
    const std::string path = folder / "a.gguf";
    const auto said = [&](TinyGguf file) {
        file.write(path);
        return error_of([&] { load_model(path); });
    };
    for (const std::string arch : {"sdar", "fast-dllm", "llada", "dream"}) {
        SCOPED_TRACE(arch);
        TinyGguf file = tiny(arch);
        if (arch == "sdar") file.keys["sdar.attention.qk_norm"] = boolean(false);
        const bool blocks = arch == "sdar" || arch == "fast-dllm";
        if (blocks) file.keys[arch + ".diffusion.block_size"] = TinyGguf::u32(8);
        if (arch == "fast-dllm") file.keys[arch + ".diffusion.sub_block_size"] = TinyGguf::u32(4);
        EXPECT_EQ(said(file), "no error");
        TinyGguf bad = file;
        bad.keys.erase("tokenizer.ggml.mask_token_id");
        expect_says(said(bad), {path, "tokenizer.ggml.mask_token_id", "missing"});
        bad.keys["tokenizer.ggml.mask_token_id"] = TinyGguf::u32(4000000000u);
        expect_says(said(bad), {path, "tokenizer.ggml.mask_token_id", "4000000000", "vocabulary"});
        if (!blocks) {
            bad = file;
            bad.keys[arch + ".diffusion.block_size"] = TinyGguf::u32(8);
            expect_says(said(bad), {"--ignore-key " + arch + ".diffusion.block_size"});
            continue;
        }
        bad = file;
        bad.keys.erase(arch + ".diffusion.block_size");
        expect_says(said(bad), {path, arch + ".diffusion.block_size", "missing"});
        for (const std::uint32_t block : {0u, 4000000000u}) {
            bad.keys[arch + ".diffusion.block_size"] = TinyGguf::u32(block);
            expect_says(said(bad), {path, arch + ".diffusion.block_size", std::to_string(block)});
        }
        bad.keys[arch + ".diffusion.block_size"] = TinyGguf::u32(1u << 20);
        expect_says(said(bad), {path, "block", "the context"});
        if (arch != "fast-dllm") continue;
        bad = file;
        bad.keys[arch + ".diffusion.sub_block_size"] = TinyGguf::u32(3);
        expect_says(said(bad), {path, "sub-block", "the block of 8"});
    }
    expect_says(said(tiny("llada-moe")), {"llada-moe", "not supported"});
}

// Output of training: a Llama trained by diffusion. Its rows of q and k are in GGUF's order, and
// its vocabulary has one more row than its tokenizer.
TEST(DiffusionFiles, OwnModels) {
    const TempFolder folder;
    convert_model(reference("llama2"), folder / "ar.gguf", {.type = DType::f32});
    const Model teacher = load_model(folder / "ar.gguf");
    ModelSpec spec = teacher.spec;
    ASSERT_EQ(spec.rope.style, ops::RopeStyle::interleaved);
    spec.family = "sdar";
    spec.vocab += 1;
    set_diffusion(spec, {.mask = spec.vocab - 1, .block = 8});
    const Model model = random_model(spec, DType::f32, 3);
    const std::string out = folder / "own";
    fs::create_directory(out);
    EXPECT_NO_THROW(require_huggingface_can_hold(spec, out));
    write_huggingface(out, spec, model.weights, teacher.tokenizer.get());
    fs::copy(reference("llama2") + "/tokenizer.json", out);

    const json config = json::parse(read_text_file(out + "/config.json"));
    EXPECT_EQ(config["model_type"], "sdar");  // which other loaders do not know
    EXPECT_EQ(config["architectures"], json::array({"SDARForCausalLM"}));
    EXPECT_EQ(config["block_size"], 8);
    EXPECT_EQ(config["mask_token_id"], spec.vocab - 1);
    EXPECT_EQ(config["qk_norm"], false);
    const Model read = load_model(out);
    EXPECT_EQ(read.spec.family, "sdar");
    EXPECT_EQ(read.spec.diffusion, spec.diffusion);
    EXPECT_EQ(read.spec.mask, spec.mask);
    EXPECT_FALSE(read.spec.qk_norm);
    EXPECT_EQ(read.tokenizer->vocab_size() + 1, read.spec.vocab);
    // Back in GGUF, whose vocabulary names every row.
    convert_model(out, folder / "own.gguf");
    const Model again = load_model(folder / "own.gguf");
    EXPECT_EQ(again.spec.diffusion, spec.diffusion);
    EXPECT_FALSE(again.spec.qk_norm);
    EXPECT_EQ(again.tokenizer->vocab_size(), again.spec.vocab);
    for (const RoleAt at : roles_of(spec)) {
        if (at.role == Role::q || at.role == Role::k) continue;  // in another order
        EXPECT_EQ(std::memcmp(role_slot(again.weights, at).data, role_slot(model.weights, at).data,
                              role_slot(model.weights, at).bytes()),
                  0)
            << tensor_names(Dialect::gguf, at).front();
    }
    // The file has halves, the model neighbours: rows 0 and 1 of a head of 8 become 0 and 4.
    EXPECT_EQ(again.spec.rope.style, ops::RopeStyle::half);
    EXPECT_EQ(std::memcmp(again.weights.layers[0].q.f32(4), model.weights.layers[0].q.f32(1),
                          static_cast<std::size_t>(spec.dim) * 4),
              0);
}

TEST(DiffusionFiles, WhatAFormatCannotSayIsNotDropped) {
    struct Case {
        const char* model;
        std::function<void(ModelSpec&)> spoil;
        const char* folder;  // the error of each format; null: none
        const char* gguf;
    };
    const Case cases[] = {
        {"llama2", [](ModelSpec& s) { set_diffusion(s, {.mask = 0, .block = 4}); }, "attention",
         "attention"},
        {"llama2", [](ModelSpec& s) { s.mask.kind = Kind::full; }, "attention", "attention"},
        {"llama2", [](ModelSpec& s) { s.family = "sdar"; }, "attention", "attention"},
        {"sdar", [](ModelSpec& s) { s.diffusion->shifted = true; }, "shifted", nullptr},
        {"sdar", [](ModelSpec& s) { s.diffusion->sub_block = 4; }, "sub-block", "sub-block"},
        {"sdar", [](ModelSpec& s) { set_diffusion(s, {.mask = 0}); }, "block", "block"},
        {"llada", [](ModelSpec& s) { set_diffusion(s, {.mask = 0, .block = 4}); }, "block",
         "block"},
        {"llada", [](ModelSpec& s) { s.out_bias = true; }, "biases", nullptr},
        {"llada", [](ModelSpec& s) { s.head_dim = 16; }, "head size", nullptr},
        {"gpt2",
         [](ModelSpec& s) {
             s.family = "sdar";
             set_diffusion(s, {.mask = 0, .block = 4});
         },
         "layers", "layers"},
    };
    for (const Case& c : cases) {
        ModelSpec spec = load_model(reference(c.model)).spec;
        c.spoil(spec);
        const auto expect = [&](const char* word, const std::string& said) {
            SCOPED_TRACE(c.model);
            if (word) {
                expect_says(said, {"out", word});
            } else {
                EXPECT_EQ(said, "no error");
            }
        };
        expect(c.folder, error_of([&] { require_huggingface_can_hold(spec, "out"); }));
        expect(c.gguf, error_of([&] { require_gguf_can_hold(spec, "out"); }));
    }
}

TEST(DiffusionFiles, RandomShapes) {
    struct Case {
        const char* shape;
        double billions;  // of parameters, as published
        DiffusionSpec diffusion;
    };
    const Case cases[] = {
        {"sdar-4b", 4.41, {.mask = 151669, .block = 4}},
        {"sdar-1.7b", 2.03, {.mask = 151669, .block = 4}},
        {"llada-8b", 8.02, {.mask = 126336}},
        {"dream-7b", 7.62, {.mask = 151666, .shifted = true}},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(c.shape);
        const auto [spec, type] = random_shape(std::string("random:") + c.shape + ":q8_0");
        EXPECT_EQ(type, DType::q8_0);
        EXPECT_EQ(spec.diffusion, c.diffusion);
        EXPECT_NEAR(static_cast<double>(spec.parameters()) / 1e9, c.billions, 0.01);
        EXPECT_NO_THROW(spec.validate(c.shape));
        EXPECT_NO_THROW(require_huggingface_can_hold(spec, c.shape));
    }
}

}  // namespace
}  // namespace mr::model
