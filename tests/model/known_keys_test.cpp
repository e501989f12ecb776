#include "model/io/known_keys.h"

#include <gtest/gtest.h>

#include "model/io/convert.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/spoiled_folder.h"

namespace mr::model::known_keys_test {
namespace {

auto boolean(bool value) {
    return [value](formats::GgufWriter& w, const std::string& key) { w.set_bool(key, value); };
}

// Unknown keys are refused by name, unless --ignore-key allows them.
TEST(KnownKeys, OfGguf) {
    using Set = std::function<void(formats::GgufWriter&, const std::string&)>;
    struct Case {
        const char* key;
        Set refused, taken;  // taken: a neutral value, if there is one
    };
    const Case cases[] = {
        {"llama.attention.scale", TinyGguf::f32(0.5f), TinyGguf::f32(0.125f)},  // heads of 64
        {"llama.logit_scale", TinyGguf::f32(16), TinyGguf::f32(1)},
        {"llama.embedding_scale", TinyGguf::f32(12), TinyGguf::f32(1)},
        {"llama.residual_scale", TinyGguf::f32(0.2f), TinyGguf::f32(1)},
        {"llama.attention.causal", boolean(false), boolean(true)},
        {"llama.attention.clamp_kqv", TinyGguf::f32(8), TinyGguf::f32(0)},
        {"llama.attn_logit_softcapping", TinyGguf::f32(50), TinyGguf::f32(0)},
        {"llama.final_logit_softcapping", TinyGguf::f32(30), TinyGguf::f32(0)},
        {"llama.expert_used_count", TinyGguf::u32(2), TinyGguf::u32(0)},
        {"llama.a_key_of_tomorrow", TinyGguf::text("x"), {}},
        {"llama.rope.dimension_sections", TinyGguf::u32(3), {}},
    };
    const TempFolder folder;
    const std::string path = folder / "a.gguf";
    for (const Case& c : cases) {
        SCOPED_TRACE(c.key);
        TinyGguf file;
        file.keys[c.key] = c.refused;
        file.write(path);
        const std::string said = error_of([&] { load_model(path); });
        EXPECT_NE(said.find(std::string("--ignore-key ") + c.key), std::string::npos) << said;
        LoadOptions options;
        options.ignore_keys = {"another", c.key};
        const std::vector<std::string> notes = load_model(path, options).notes;
        ASSERT_EQ(notes.size(), 1u);  // for the other one, which is not in the file
        EXPECT_NE(notes[0].find("another"), std::string::npos) << notes[0];
        ConvertOptions convert;
        convert.ignore_keys = options.ignore_keys;
        convert_model(path, folder / "b.gguf", convert);
        load_model(folder / "b.gguf");  // without it
        if (!c.taken) continue;
        file.keys[c.key] = c.taken;
        file.write(path);
        load_model(path);
    }
    TinyGguf file;
    file.keys["general.type"] = TinyGguf::text("adapter");
    file.write(path);
    EXPECT_NE(error_of([&] { load_model(path); }).find("not a whole model"), std::string::npos);
    // Keys in other namespaces are accepted.
    file.keys["general.type"] = TinyGguf::text("model");
    file.keys["general.languages"] = TinyGguf::text("en");
    file.keys["quantize.imatrix.file"] = TinyGguf::text("x");
    file.keys["llama2.something"] = TinyGguf::u32(1);
    file.write(path);
    load_model(path);
}

TEST(KnownKeys, OfConfigJson) {
    using nlohmann::json;
    struct Case {
        const char* key;
        json refused, taken;
    };
    const Case cases[] = {
        {"logits_scaling", 8.0, 1.0},
        {"attention_multiplier", 0.01, nullptr},
        {"embedding_multiplier", 12, 1},
        {"num_local_experts", 8, 0},
        {"final_logit_softcapping", 30.0, nullptr},
        {"use_mrope", true, false},
        {"is_encoder_decoder", true, false},
        {"a_key_of_tomorrow", {1, 2}, nullptr},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(c.key);
        Spoiled model("llama2");
        model.config[c.key] = c.refused;
        const std::string said = error_of([&] { load_model(model.path()); });
        EXPECT_NE(said.find(std::string("--ignore-key ") + c.key), std::string::npos) << said;
        EXPECT_NE(said.find("config.json"), std::string::npos) << said;
        LoadOptions options;
        options.ignore_keys = {c.key};
        load_model(model.path(), options);
        model.config[c.key] = c.taken;
        load_model(model.path());
    }
    {  // all of them in one error
        Spoiled model("llama2");
        model.config["one"] = model.config["two"] = 1;
        EXPECT_NE(
            error_of([&] { load_model(model.path()); }).find("--ignore-key one --ignore-key two"),
            std::string::npos);
    }
    Spoiled model("llama3");
    model.config["rope_scaling"]["long_factor"] = {1.0, 2.0};
    EXPECT_NE(error_of([&] { load_model(model.path()); }).find("rope_scaling.long_factor"),
              std::string::npos);
    LoadOptions options;
    options.ignore_keys = {"rope_scaling.long_factor"};
    load_model(model.path(), options);
}

}  // namespace
}  // namespace mr::model::known_keys_test
