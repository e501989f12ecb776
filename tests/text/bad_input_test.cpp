// Invalid tokenizer files: one Error that names the file and the field.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "formats/gguf_writer.h"
#include "text/tokenizer_gguf.h"
#include "text_data.h"

namespace mr::text {
namespace {

using nlohmann::json;

json small_json() {
    return json::parse(R"({
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"<|endoftext|>": {"ids": [0]}}},
        "model": {"type": "BPE", "vocab": {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3},
                  "merges": ["a b"]}})");
}

void expect_error(const std::function<void()>& make, const std::string& file,
                  const std::string& field) {
    try {
        make();
        ADD_FAILURE() << "no error for " << field;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        const std::string what = error.what();
        EXPECT_NE(what.find(file), std::string::npos) << what;
        EXPECT_NE(what.find(field), std::string::npos) << what << "\nshould name " << field;
    }
}

TEST(BadJson, TheGoodOneIsGood) {
    const auto tokenizer = Tokenizer::from_json(small_json().dump(), "small");
    EXPECT_EQ(tokenizer->encode("ab"), (std::vector<std::int32_t>{0, 3}));
}

TEST(BadJson, NamesTheField) {
    struct Case {
        const char *pointer, *value, *field;
    };
    const Case cases[] = {
        {"/model", "7", "model"},
        {"/model", "null", "model"},
        {"/model/type", "\"Unigram\"", "model.type"},
        {"/model/type", "5", "model.type"},
        {"/model/vocab", "[]", "model.vocab"},
        {"/model/vocab", "null", "model.vocab"},
        {"/model/vocab/a", "\"1\"", "model.vocab['a']"},
        {"/model/vocab/a", "-1", "model.vocab['a']"},
        {"/model/vocab/a", "1.5", "model.vocab['a']"},
        {"/model/vocab/a", "1e99", "model.vocab['a']"},
        {"/model/vocab/a", "18446744073709551615", "model.vocab['a']"},
        {"/model/vocab/a", "2", "model.vocab['b']"},
        {"/model/vocab/a", "1000000", "ids up to 1000000"},
        {"/model/merges", "null", "model.merges"},
        {"/model/merges", "{}", "model.merges"},
        {"/model/merges/0", "\"ab\"", "model.merges[0]"},
        {"/model/merges/0", "\"a b c\"", "model.merges[0]"},
        {"/model/merges/0", "\"a c\"", "model.merges[0]"},
        {"/model/merges/0", "[\"a\"]", "model.merges[0]"},
        {"/model/merges/0", "[1, 2]", "model.merges[0]"},
        {"/model/merges/0", "\"b a\"", "merges[0]"},
        {"/model/byte_fallback", "1", "model.byte_fallback"},
        {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"/added_tokens", "{}", "added_tokens"},
        {"/added_tokens/0", "7", "added_tokens[0]"},
        {"/added_tokens/0/id", "null", "added_tokens[0].id"},
        {"/added_tokens/0/id", "1", "added_tokens[0].id"},
        {"/added_tokens/0/id", "99999999999", "added_tokens[0].id"},
        {"/added_tokens/0/content", "\"\"", "added_tokens[0].content"},
        {"/added_tokens/0/content", "3", "added_tokens[0].content"},
        {"/added_tokens/0/special", "\"yes\"", "added_tokens[0].special"},
        {"/normalizer", "{\"type\": \"Lowercase\"}", "Lowercase"},
        {"/normalizer", "{\"type\": \"Sequence\"}", "normalizer.normalizers"},
        {"/pre_tokenizer", "null", "pre_tokenizer"},
        {"/pre_tokenizer", "{\"type\": \"Whitespace\"}", "Whitespace"},
        {"/pre_tokenizer/use_regex", "false", "pre_tokenizer"},
        {"/pre_tokenizer",
         "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x+\"}, \"behavior\": \"Isolated\"}",
         "x+"},
        {"/post_processor/type", "\"Other\"", "post_processor"},
        {"/post_processor/single", "3", "post_processor.single"},
        {"/post_processor/single/0", "{}", "post_processor.single[0]"},
        {"/post_processor/special_tokens/<|endoftext|>/ids/0", "4000", "4000"},
    };
    for (const Case& c : cases) {
        json root = small_json();
        root[json::json_pointer(c.pointer)] = json::parse(c.value);
        SCOPED_TRACE(std::string(c.pointer) + " = " + c.value);
        expect_error([&] { Tokenizer::from_json(root.dump(), "small.json"); }, "small.json",
                     c.field);
    }
}

TEST(BadJson, AnAddedTokenBehindAGapIsToldWhatToDo) {
    json root = small_json();
    const auto next = root["model"]["vocab"].size();
    json& token = root["added_tokens"][0];
    token["content"] = "<new>";
    token["id"] = next;
    EXPECT_NO_THROW(Tokenizer::from_json(root.dump(), "x.json"));
    token["id"] = next + 1;
    root["added_tokens"].push_back(token);  // else the id is too large for so few tokens
    root["added_tokens"][1]["content"] = "<other>";
    root["added_tokens"][1]["id"] = next;
    expect_error([&] { Tokenizer::from_json(root.dump(), "x.json"); }, "x.json",
                 "is not " + std::to_string(next) + ", the next after the vocabulary");
    expect_error([&] { Tokenizer::from_json(root.dump(), "x.json"); }, "x.json",
                 "number the added tokens in the order of the file");
}

TEST(BadJson, UnknownPreTokenizersAreToldWhatIsSupported) {
    json root = small_json();
    root["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    expect_error([&] { Tokenizer::from_json(root.dump(), "x.json"); }, "x.json", "llama-bpe");
}

TEST(BadJson, NotJson) {
    const std::string good = small_json().dump();
    const std::string cases[] = {"",
                                 "{",
                                 "null",
                                 "[]",
                                 std::string(100'000, '['),
                                 std::string(2000, '{'),
                                 "{\"model\": \"\xff\xfe\"}",
                                 good + good,
                                 good.substr(0, good.size() / 2),
                                 std::string(1, '\0')};
    for (const std::string& text : cases) {
        SCOPED_TRACE(text.substr(0, 40));
        expect_error([&] { Tokenizer::from_json(text, "bad.json"); }, "bad.json", "");
    }
    for (std::size_t n = 0; n < good.size(); ++n) {
        EXPECT_THROW(Tokenizer::from_json(good.substr(0, n), "cut.json"), Error) << n;
    }
}

TEST(BadJson, BadConfiguration) {
    const std::string good = small_json().dump();
    for (const char* config :
         {"{", "{\"bos_token\": 7}", "{\"add_bos_token\": \"x\"}", "{\"chat_template\": 7}"}) {
        SCOPED_TRACE(config);
        expect_error([&] { Tokenizer::from_json(good, "a.json", config); }, "a.json",
                     "tokenizer_config.json");
    }
}

TEST(BadJson, MissingFileAndFolder) {
    EXPECT_THROW(Tokenizer::from_json_file("/nowhere/tokenizer.json"), Error);
    EXPECT_THROW(Tokenizer::from_json_file(testing::TempDir()), Error);
}

class TempFile {
  public:
    explicit TempFile(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
    ~TempFile() { std::filesystem::remove(path); }
    // One per process and per object: tests run in parallel.
    const std::string path = testing::TempDir() + "/millrace_text_" + std::to_string(getpid()) +
                             "_" + std::to_string(reinterpret_cast<std::uintptr_t>(this));
};

std::string small_binary() {
    std::string out;
    const auto put = [&](auto value) {
        out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put(std::int32_t{7});
    for (std::string token : {"<unk>", "\n<s>\n", "\n</s>\n", "<0x0A>", " ", "a", " a"}) {
        put(-static_cast<float>(out.size()));
        put(static_cast<std::int32_t>(token.size()));
        out += token;
    }
    return out;
}

TEST(BadBinary, TheGoodOneIsGood) {
    const TempFile file(small_binary());
    const auto tokenizer = Tokenizer::from_llama2c(file.path, 7);
    EXPECT_EQ(tokenizer->encode("a\n"), (std::vector<std::int32_t>{1, 6, 3}));
}

TEST(BadBinary, EveryTruncationAndLength) {
    const std::string good = small_binary();
    for (std::size_t n = 0; n < good.size(); ++n) {
        const TempFile file(good.substr(0, n));
        EXPECT_THROW(Tokenizer::from_llama2c(file.path, 7), Error) << n;
    }
    const TempFile whole(good);
    expect_error([&] { Tokenizer::from_llama2c(whole.path, 8); }, whole.path, "token 7");
    for (std::int32_t length : {-1, 1000, 0x7FFFFFFF}) {
        std::string bad = good;
        bad.replace(8, 4, reinterpret_cast<const char*>(&length), 4);
        const TempFile file(bad);
        expect_error([&] { Tokenizer::from_llama2c(file.path, 7); }, file.path, "token 0");
    }
    std::string bad = good;
    bad.replace(4, 4, "\xff\xff\xff\xff");  // a score that is no number
    const TempFile file(bad);
    expect_error([&] { Tokenizer::from_llama2c(file.path, 7); }, file.path, "scores[0]");
    std::string long_token(5000, 'a');
    const auto length = static_cast<std::int32_t>(long_token.size());
    const TempFile longer(good + std::string(4, '\0') +
                          std::string(reinterpret_cast<const char*>(&length), 4) + long_token);
    expect_error([&] { Tokenizer::from_llama2c(longer.path); }, longer.path, "token 7");
}

using Fill = std::function<void(formats::GgufWriter&)>;

void expect_gguf_error(const Fill& fill, const std::string& field) {
    const TempFile file("");
    formats::GgufWriter writer(file.path);
    fill(writer);
    writer.finish();
    expect_error([&] { Tokenizer::from_gguf(formats::GgufFile::open(file.path)); }, file.path,
                 field);
}

TEST(BadGguf, NamesTheField) {
    using Strings = std::vector<std::string>;
    const auto base = [](formats::GgufWriter& w, const std::string& model, const Strings& tokens) {
        w.set_string("tokenizer.ggml.model", model);
        w.set_strings("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
    };
    const auto merges = [](formats::GgufWriter& w, const Strings& list) {
        w.set_strings("tokenizer.ggml.merges", std::span<const std::string>(list));
    };
    const auto ints = [](formats::GgufWriter& w, std::vector<std::int32_t> list) {
        w.set_ints("tokenizer.ggml.token_type", list);
    };
    const auto floats = [](formats::GgufWriter& w, std::vector<float> list) {
        w.set_floats("tokenizer.ggml.scores", list);
    };
    const Strings ab = {"a", "b", "ab"};
    expect_gguf_error([&](auto&) {}, "tokenizer.ggml.model");
    expect_gguf_error([&](auto& w) { w.set_string("tokenizer.ggml.model", "gpt2"); },
                      "tokenizer.ggml.tokens");
    expect_gguf_error([&](auto& w) { base(w, "bert", ab); }, "bert");
    expect_gguf_error([&](auto& w) { base(w, "gpt2", ab); }, "tokenizer.ggml.merges");
    expect_gguf_error([&](auto& w) { base(w, "gpt2", {}), merges(w, {}); }, "vocabulary");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {"a b", "ab"});
        },
        "tokenizer.ggml.merges[1]");
    expect_gguf_error([&](auto& w) { base(w, "gpt2", ab), merges(w, {"a c"}); },
                      "tokenizer.ggml.merges[0]");
    expect_gguf_error([&](auto& w) { base(w, "gpt2", ab), merges(w, {"b a"}); }, "merges[0]");
    expect_gguf_error([&](auto& w) { base(w, "gpt2", ab), merges(w, {""}); },
                      "tokenizer.ggml.merges[0]");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {"a b"});
            w.set_string("tokenizer.ggml.pre", "tekken");
        },
        "tekken");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {"a b"});
            w.set_u32("tokenizer.ggml.eos_token_id", 3);
        },
        "tokenizer.ggml.eos_token_id");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {}), ints(w, {1, 1});
        },
        "tokenizer.ggml.token_type");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {}), ints(w, {1, 1, 9});
        },
        "tokenizer.ggml.token_type[2]");
    expect_gguf_error([&](auto& w) { base(w, "llama", ab); }, "tokenizer.ggml.scores");
    expect_gguf_error([&](auto& w) { base(w, "llama", ab), floats(w, {0}); },
                      "tokenizer.ggml.scores");
    expect_gguf_error([&](auto& w) { base(w, "llama", ab), floats(w, {0, 0, NAN}); }, "scores[2]");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "llama", ab), floats(w, {0, 0, 0}), ints(w, {6, 1, 1});
        },
        "token 0");

    // Keys of ours.
    for (const auto& [pairs, says] : std::vector<std::pair<std::vector<std::int32_t>, std::string>>{
             {{1}, "1 entries"}, {{1, 2, 0, 3}, "merges[3]"}, {{-1, 2}, "merges[0]"}}) {
        expect_gguf_error(
            [&](auto& w) {
                base(w, "llama", ab), floats(w, {0, 0, 0});
                w.set_ints("millrace.tokenizer.merges", pairs);
            },
            says);
    }
    const auto with = [&](const std::string& key, std::vector<std::int32_t> list) {
        return [=](formats::GgufWriter& w) {
            base(w, "gpt2", ab), merges(w, {}), ints(w, {1, 1, 4});
            w.set_ints(key, list);
        };
    };
    const std::string added = "millrace.tokenizer.added", prefix = "millrace.tokenizer.prefix";
    expect_gguf_error(with(added, {2}), "1 entries");
    expect_gguf_error(with(added, {2, 1, 3, 1}), added + "[2]");
    expect_gguf_error(with(added, {-1, 1}), added + "[0]");
    expect_gguf_error(with(added, {0, 1}), added + "[0]");   // no added token
    expect_gguf_error(with(added, {2, 32}), added + "[1]");  // no token of a byte
    expect_gguf_error(with(added, {2, 128}), added + "[1]");
    expect_gguf_error(with(added, {2, -1}), added + "[1]");
    expect_gguf_error(with(prefix, {0, 3}), prefix + "[1]");
    expect_gguf_error(with("millrace.tokenizer.suffix", {-1}), "millrace.tokenizer.suffix[0]");
    expect_gguf_error(
        [&](auto& w) {
            base(w, "gpt2", ab), merges(w, {});
            w.set_string(added, "lstrip");
        },
        added);
}

// What GGUF has no keys for: flags of added tokens, and more than BOS and EOS around a text.
TEST(GgufVocabulary, KeepsFlagsOfAddedTokensAndTokensAround) {
    const std::string folder = std::string(MR_SOURCE_DIR) + "/tests/reference/gpt2/";
    TokenizerData data = Tokenizer::from_json_file(folder + "tokenizer.json")->data();
    const auto after_writing = [&] {
        const TempFile file("");
        formats::GgufWriter writer(file.path);
        write_tokenizer(writer, data);
        writer.finish();
        return Tokenizer::from_gguf(formats::GgufFile::open(file.path));
    };
    ASSERT_EQ(data.added.size(), 1u);
    const auto id = static_cast<std::size_t>(data.added[0].id);
    for (const bool special : {true, false}) {
        data.types[id] = special ? TokenType::control : TokenType::user_defined;
        for (int mask = 0; mask < 32; ++mask) {
            data.added[0] = {.id = data.added[0].id,
                             .text = data.added[0].text,
                             .special = special,
                             .lstrip = (mask & 1) != 0,
                             .rstrip = (mask & 2) != 0,
                             .single_word = (mask & 4) != 0,
                             .normalized = (mask & 8) != 0,
                             .piece = (mask & 16) != 0};
            const auto before = Tokenizer::from_data(data), after = after_writing();
            ASSERT_EQ(after->data().added.size(), 1u);
            const AddedToken& was = data.added[0];
            const AddedToken& is = after->data().added[0];
            EXPECT_EQ(is.lstrip, was.lstrip) << mask;
            EXPECT_EQ(is.rstrip, was.rstrip) << mask;
            EXPECT_EQ(is.single_word, was.single_word) << mask;
            EXPECT_EQ(is.normalized, was.normalized) << mask;
            EXPECT_EQ(is.piece, was.piece) << mask;
            EXPECT_EQ(is.special, was.special) << mask;
            const std::string text = "a  " + was.text + "   b" + was.text;
            EXPECT_EQ(after->encode(text), before->encode(text)) << mask;
        }
    }
    data.bos = data.eos = data.added[0].id;
    using Ids = std::vector<std::int32_t>;
    for (const Ids& prefix : {Ids{}, Ids{*data.bos}, Ids{*data.bos, 5}, Ids{7}}) {
        for (const Ids& suffix : {Ids{}, Ids{*data.eos}, Ids{6, *data.eos}, Ids{8}}) {
            data.prefix = prefix;
            data.suffix = suffix;
            const auto after = after_writing();
            EXPECT_EQ(after->data().prefix, prefix);
            EXPECT_EQ(after->data().suffix, suffix);
        }
    }
}

// A written vocabulary reads back the same.
TEST(GgufVocabulary, SurvivesWriting) {
    for (const char* name : kTokenizers) {
        SCOPED_TRACE(name);
        MR_NEED_DATA(name);
        const auto before = load(name);
        const TempFile file("");
        formats::GgufWriter writer(file.path);
        write_tokenizer(writer, before->data());
        writer.finish();
        const auto after = Tokenizer::from_gguf(formats::GgufFile::open(file.path));
        EXPECT_EQ(after->kind(), before->kind());
        EXPECT_EQ(after->vocab_size(), before->vocab_size());
        EXPECT_EQ(after->bos(), before->bos());
        EXPECT_EQ(after->eos(), before->eos());
        EXPECT_EQ(after->chat_template(), before->chat_template());
        const auto recorded = golden();
        for (const auto& text : recorded["texts"]) {
            const auto bytes = text.get<std::string>();
            const auto ids = before->encode(bytes);
            ASSERT_EQ(after->encode(bytes), ids) << text;
            ASSERT_EQ(after->decode(ids), before->decode(ids)) << text;
        }
    }
}

}  // namespace
}  // namespace mr::text
