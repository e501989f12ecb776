#include "model/io/generation.h"

#include <gtest/gtest.h>

#include "comma_locale.h"
#include "model/io/convert.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/spoiled_folder.h"
#include "text/tokenizer_gguf.h"

namespace mr::model {
namespace {

void write_advice(Spoiled& model, const std::string& text) {
    std::ofstream(model.folder() / "generation_config.json") << text;
}

using Ends = std::vector<std::int32_t>;

TEST(Generation, EndsOfConfigurationsAreANumberOrAList) {
    Spoiled model("llama2");
    model.config["eos_token_id"] = 7;
    EXPECT_EQ(load_model(model.path()).generation.ends, Ends{7});
    model.config["eos_token_id"] = {7, 9, 7};
    write_advice(model, R"({"eos_token_id": [9, 11]})");
    EXPECT_EQ(load_model(model.path()).generation.ends, (Ends{7, 9, 11}));
    write_advice(model, R"({"eos_token_id": 12, "temperature": null})");
    EXPECT_EQ(load_model(model.path()).generation.ends, (Ends{7, 9, 12}));
    // Ids outside the vocabulary are never drawn.
    model.config["eos_token_id"] = {-1, 288};
    write_advice(model, R"({"eos_token_id": 128001})");
    EXPECT_EQ(load_model(model.path()).generation.ends, Ends{});
    model.config["eos_token_id"] = nullptr;
    EXPECT_FALSE(load_model(model.path()).generation.says_sampling());
}

TEST(Generation, SamplingOfGenerationConfig) {
    Spoiled model("llama2");
    write_advice(model, R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
                            "min_p": 0.01, "repetition_penalty": 1.05, "max_length": 4096})");
    const Generation read = load_model(model.path()).generation;
    EXPECT_EQ(read.temperature, 0.6f);
    EXPECT_EQ(read.top_p, 0.9f);
    EXPECT_EQ(read.top_k, 20);
    EXPECT_EQ(read.min_p, 0.01f);
    EXPECT_EQ(read.repeat_penalty, 1.05f);
    EXPECT_EQ(read.repeat_window, Generation::kWholeText);
    write_advice(model, R"({"do_sample": false, "temperature": 0.6})");
    EXPECT_EQ(load_model(model.path()).generation.temperature, 0.0f);
}

TEST(Generation, ValuesThatMakeNoSenseAreNamed) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"temperature": "hot"})", "temperature"},
        {R"({"temperature": -1})", "temperature"},
        {R"({"top_p": 1.5})", "top_p"},
        {R"({"top_k": "all"})", "top_k"},
        {R"({"repetition_penalty": 0})", "repetition_penalty"},
        {R"({"do_sample": 1})", "do_sample"},
        {R"({"eos_token_id": "</s>"})", "eos_token_id"},
        {R"({"eos_token_id": [[1]]})", "eos_token_id"},
        {R"([1])", "one JSON object"},
        {R"({)", "not valid JSON"},
    };
    for (const auto& [text, says] : cases) {
        SCOPED_TRACE(text);
        Spoiled model("llama2");
        write_advice(model, text);
        const std::string said = error_of([&] { load_model(model.path()); });
        EXPECT_NE(said.find("generation_config.json"), std::string::npos) << said;
        EXPECT_NE(said.find(says), std::string::npos) << said;
    }
}

TEST(Generation, OtherSpellingsAndWhatIsNotObeyed) {
    Spoiled model("llama2");
    write_advice(model, R"({"top_k": -1, "eos_token_id": 10.0, "num_beams": 1, "max_length": 9})");
    const Model read = load_model(model.path());
    EXPECT_EQ(read.generation.top_k, 0);
    EXPECT_TRUE(read.generation.ends_at(10));
    EXPECT_TRUE(read.notes.empty());
    write_advice(model, R"({"num_beams": 4, "suppress_tokens": [1], "typical_p": 0.9})");
    const std::vector<std::string> notes = load_model(model.path()).notes;
    ASSERT_EQ(notes.size(), 3u);
    EXPECT_NE(notes[0].find("num_beams"), std::string::npos) << notes[0];
    // A dangling link does not count as an absent file.
    fs::remove(model.folder() / "generation_config.json");
    fs::create_symlink("nowhere", model.folder() / "generation_config.json");
    EXPECT_NE(error_of([&] { load_model(model.path()); }).find("generation_config.json"),
              std::string::npos);
}

// GGUF has an end of turn besides the end of a text.
TEST(Generation, TheEndOfATurnIsKept) {
    const TempFolder folder;
    text::TokenizerData data = load_model(reference("llama2")).tokenizer->data();
    data.end_of_turn = 65;
    TinyGguf file;
    file.tensors["token_embd.weight"] = {DType::f32, {288, 256}};
    file.keys["tokenizer"] = [&](formats::GgufWriter& writer, const std::string&) {
        text::write_tokenizer(writer, data);
    };
    file.write(folder / "a.gguf");
    ASSERT_TRUE(load_model(folder / "a.gguf").tokenizer->is_end_of_generation(65));
    convert_model(folder / "a.gguf", folder / "b");
    EXPECT_TRUE(load_model(folder / "b").generation.ends_at(65));
    EXPECT_TRUE(load_model(folder / "b").generation.ends_at(*data.eos));
}

TEST(Generation, IsTheSameAfterConverting) {
    Spoiled model("llama2");
    model.config["eos_token_id"] = {7, 9};
    write_advice(model, R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.01,
                            "repetition_penalty": 1.05, "eos_token_id": 11})");
    const TempFolder folder;
    const Generation expected = load_model(model.path()).generation;
    convert_model(model.path(), folder / "a.gguf");
    EXPECT_EQ(load_model(folder / "a.gguf").generation, expected);
    convert_model(folder / "a.gguf", folder / "b");
    Generation back = load_model(folder / "b").generation;
    for (const std::int32_t end : expected.ends) EXPECT_TRUE(back.ends_at(end)) << end;
    back.ends = expected.ends;
    EXPECT_EQ(back, expected);
    convert_model(folder / "b", folder / "c");
    EXPECT_EQ(read_text_file(folder / "c/generation_config.json"),
              read_text_file(folder / "b/generation_config.json"));
    // Greedy stays greedy.
    write_advice(model, R"({"do_sample": false})");
    convert_model(model.path(), folder / "d.gguf");
    convert_model(folder / "d.gguf", folder / "e");
    EXPECT_EQ(load_model(folder / "d.gguf").generation.temperature, 0.0f);
    EXPECT_EQ(load_model(folder / "e").generation.temperature, 0.0f);
}

TEST(Generation, IsWrittenWithPointsInEveryLocale) {
    Spoiled model("llama2");
    write_advice(model, R"({"temperature": 0.6, "top_p": 0.9})");
    const TempFolder folder;
    convert_model(model.path(), folder / "a.gguf");
    convert_model(folder / "a.gguf", folder / "point");
    const test::CommaLocale locale;
    MR_NEED_COMMAS(locale);
    convert_model(folder / "a.gguf", folder / "comma");
    for (const std::string name : {"/generation_config.json", "/config.json"}) {
        EXPECT_EQ(read_text_file(folder / "comma" + name), read_text_file(folder / "point" + name));
    }
    EXPECT_EQ(load_model(folder / "comma").generation.temperature, 0.6f);
}

TEST(Generation, KeysOfGguf) {
    const TempFolder folder;
    TinyGguf file;
    file.keys["tokenizer.ggml.eom_token_id"] = TinyGguf::u32(5);
    file.keys["general.sampling.temp"] = TinyGguf::f32(0.5f);
    file.keys["general.sampling.penalty_last_n"] =
        [](formats::GgufWriter& w, const std::string& key) { w.set_i32(key, 32); };
    file.write(folder / "a.gguf");
    const Generation read = load_model(folder / "a.gguf").generation;
    EXPECT_EQ(read.ends, Ends{5});
    EXPECT_EQ(read.temperature, 0.5f);
    EXPECT_EQ(read.repeat_window, 32);
    EXPECT_FALSE(read.top_p);
    file.keys["general.sampling.top_p"] = TinyGguf::f32(2.0f);
    file.write(folder / "a.gguf");
    EXPECT_NE(error_of([&] { load_model(folder / "a.gguf"); }).find("general.sampling.top_p"),
              std::string::npos);
}

}  // namespace
}  // namespace mr::model
