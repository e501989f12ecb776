// Ids compared with those of other implementations for the same texts.
#include <sstream>

#include "sanitized.h"
#include "text/pretokenize.h"
#include "text_data.h"

namespace mr::text {
namespace {

using Ids = std::vector<std::int32_t>;

class HuggingFace : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, GivesTheRecordedIds) {
    const std::string file = std::string("tokenizers/") + GetParam() + "/tokenizer.json";
    MR_NEED_DATA(file);
    // Without tokenizer_config.json, as in the recording.
    const auto tokenizer = Tokenizer::from_json(read_all(data_path(file)), file);
    const auto recorded = golden();
    ASSERT_EQ(recorded["texts"].size(), recorded["ids"][GetParam()].size());
    for (std::size_t i = 0; i < recorded["texts"].size(); ++i) {
        const auto text = recorded["texts"][i].get<std::string>();
        EXPECT_EQ(tokenizer->encode(text), recorded["ids"][GetParam()][i].get<Ids>())
            << recorded["texts"][i];
    }
}

INSTANTIATE_TEST_SUITE_P(Text, HuggingFace,
                         testing::Values("gpt2", "gpt-neox", "qwen2_5", "llama2"),
                         [](const auto& info) {
                             std::string name = info.param;
                             for (char& c : name) c = std::isalnum(c) ? c : '_';
                             return name;
                         });

TEST(PreTokenizer, CutsAsLlama3sRegularExpressionDoes) {
    const auto recorded = golden();
    for (std::size_t i = 0; i < recorded["texts"].size(); ++i) {
        const auto text = recorded["texts"][i].get<std::string>();
        std::vector<std::size_t> sizes;
        for (std::size_t pos = 0; pos < text.size();) {
            const std::size_t end = word_end(PreTokenizer::llama3, text, pos);
            ASSERT_GT(end, pos);
            sizes.push_back(end - pos);
            pos = end;
        }
        EXPECT_EQ(sizes, recorded["llama3_words"][i].get<std::vector<std::size_t>>())
            << recorded["texts"][i];
    }
}

// llama.cpp's vectors: texts between separator lines, one line of ids per text, without BOS.
class LlamaCpp : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(LlamaCpp, GivesTheRecordedIds) {
    const auto [vectors, file] = GetParam();
    const std::string inputs = std::string("tokenizers/gguf/ggml-vocab-") + vectors + ".gguf.inp";
    MR_NEED_DATA(inputs);
    const auto tokenizer = load(file);
    const std::string separator = "\n__ggml_vocab_test__\n";
    std::string texts = read_all(data_path(inputs));
    std::istringstream lines(
        read_all(data_path(std::string("tokenizers/gguf/ggml-vocab-") + vectors + ".gguf.out")));
    int count = 0;
    std::string line;
    for (std::size_t pos = 0; std::getline(lines, line); ++count) {
        const std::size_t end = texts.find(separator, pos);
        ASSERT_NE(end, std::string::npos);
        const std::string text = texts.substr(pos, end - pos);
        pos = end + separator.size();
        std::istringstream numbers(line);
        Ids expected{std::istream_iterator<std::int32_t>(numbers), {}};
        EXPECT_EQ(tokenizer->encode(text, {.add_special = false}), expected) << text;
    }
    EXPECT_GT(count, 40);
}

INSTANTIATE_TEST_SUITE_P(
    Text, LlamaCpp,
    testing::Values(std::pair("gpt-2", "tokenizers/gguf/ggml-vocab-gpt-2.gguf"),
                    std::pair("gpt-2", "tokenizers/gpt2/tokenizer.json"),
                    std::pair("llama-spm", "tokenizers/gguf/ggml-vocab-llama-spm.gguf"),
                    std::pair("llama-spm", "tokenizers/llama2/tokenizer.bin"),
                    std::pair("qwen2", "tokenizers/qwen2_5/tokenizer.json")));

// SentencePiece itself parses no special tokens in a text.
TEST(Llama2, GivesTheIdsOfSentencePiece) {
    MR_NEED_DATA("tokenizers/llama2/tokenizer.bin");
    const auto binary = load("tokenizers/llama2/tokenizer.bin");
    const auto gguf = load("tokenizers/gguf/ggml-vocab-llama-spm.gguf");
    const auto recorded = golden();
    for (std::size_t i = 0; i < recorded["texts"].size(); ++i) {
        const auto text = recorded["texts"][i].get<std::string>();
        const auto expected = recorded["ids"]["sentencepiece"][i].get<Ids>();
        const EncodeOptions plain{.add_special = true, .parse_special = false};
        EXPECT_EQ(binary->encode(text, plain), expected) << recorded["texts"][i];
        EXPECT_EQ(gguf->encode(text, plain), expected) << recorded["texts"][i];
    }
    const std::string text = read_all(data_path("text/wiki.test.raw"));
    EXPECT_EQ(binary->encode(text), gguf->encode(text));
}

// tokenizer.json has merges, GGUF scores: derived ones must give the same ids.
TEST(SentencePiece, DerivedScoresAgreeWithMerges) {
    MR_NEED_DATA("tokenizers/llama2/tokenizer.json");
    const auto merged = load("tokenizers/llama2/tokenizer.json");
    TokenizerData data = merged->data();
    data.merges.clear();
    const auto scored = Tokenizer::from_data(data);
    for (const auto& text : golden()["texts"]) {
        EXPECT_EQ(scored->encode(text.get<std::string>()), merged->encode(text.get<std::string>()))
            << text;
    }
    const std::string text = read_all(data_path("text/wiki.test.raw"));
    EXPECT_EQ(scored->encode(text), merged->encode(text));
}

TEST(Gpt2, JsonAndGgufAgree) {
    MR_NEED_DATA("tokenizers/gguf/ggml-vocab-gpt-2.gguf");
    std::string text = read_all(data_path("text/wiki.test.raw"));
    if (test::sanitized()) text.resize(text.find('\n', 100'000));
    EXPECT_EQ(load("tokenizers/gguf/ggml-vocab-gpt-2.gguf")->encode(text),
              load("tokenizers/gpt2/tokenizer.json")->encode(text));
    EXPECT_EQ(load("tokenizers/gguf/ggml-vocab-gpt-neox.gguf")->encode(text),
              load("tokenizers/gpt-neox/tokenizer.json")->encode(text));
}

TEST(Tok512, EncodesAStory) {
    MR_NEED_DATA("models/tok512.bin");
    const auto tokenizer = load("models/tok512.bin");
    EXPECT_EQ(tokenizer->vocab_size(), 512);
    EXPECT_EQ(tokenizer->encode("Once upon a time"), (Ids{1, 403, 407, 261, 378}));
}

}  // namespace
}  // namespace mr::text
