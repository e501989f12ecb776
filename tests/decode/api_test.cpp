// The public API, using only its own header.
#include <gtest/gtest.h>

#include <string>

#include "millrace/millrace.h"

namespace {

const std::string kModel = MR_SOURCE_DIR "/tests/reference/llama2";

millrace::GenerateOptions greedy(int tokens) { return {.max_tokens = tokens, .temperature = 0}; }

TEST(Api, GeneratesAndStreamsTheSameText) {
    millrace::Model model = millrace::Model::load(kModel, {.context = 256});
    EXPECT_EQ(model.info().family, "llama");
    EXPECT_EQ(model.info().context, 256);
    std::string streamed;
    const millrace::Generation made =
        model.generate("Once upon", greedy(20), [&](std::string_view text) {
            streamed += text;
            return true;
        });
    EXPECT_FALSE(made.tokens.empty());
    EXPECT_EQ(streamed, made.text);
    EXPECT_EQ(model.generate("Once upon", greedy(20)).tokens, made.tokens);
    EXPECT_GT(made.bytes_per_token, 0);
}

TEST(Api, TheCallbackStopsAndItsExceptionsComeThrough) {
    millrace::Model model = millrace::Model::load(kModel);
    EXPECT_EQ(
        model.generate("Once", greedy(50), [](std::string_view) { return false; }).stop_reason,
        "cancelled");
    EXPECT_THROW(model.generate("Once", greedy(50), [](std::string_view) -> bool { throw 42; }),
                 int);
    EXPECT_FALSE(model.generate("Once", greedy(5)).tokens.empty());
}

TEST(Api, TokensAndBack) {
    const millrace::Model model = millrace::Model::load(kModel);
    const auto with = model.tokenize("Once upon a time");
    const auto without = model.tokenize("Once upon a time", false);
    EXPECT_EQ(with.size(), without.size() + 1);
    EXPECT_EQ(model.detokenize(with), "Once upon a time");
}

TEST(Api, EvaluationLeavesGenerationAsItWas) {
    millrace::Model model = millrace::Model::load(kModel, {.context = 64});
    const auto before = model.generate("Once upon a time", greedy(8)).tokens;
    const std::string text(2000, 'a');  // longer than the context: it fills the cache
    const millrace::Evaluation result = model.evaluate(text);
    EXPECT_GT(result.tokens, 64);
    EXPECT_GT(result.perplexity, 1);
    EXPECT_EQ(model.generate("Once upon a time", greedy(8)).tokens, before);
}

TEST(Api, ErrorsAreOfOneType) {
    try {
        millrace::Model::load("/no/such/model.gguf");
        FAIL() << "opened a model that is not there";
    } catch (const millrace::Error& error) {
        EXPECT_EQ(error.kind(), millrace::Error::Kind::input);
        EXPECT_NE(std::string(error.what()).find("/no/such/model.gguf"), std::string::npos);
    }
    millrace::Model model = millrace::Model::load(kModel, {.context = 16});
    EXPECT_THROW(model.generate(std::string(500, 'x')), millrace::Error);
    EXPECT_THROW(model.evaluate(""), millrace::Error);
    EXPECT_THROW(millrace::Model::load(MR_SOURCE_DIR "/tests/reference/mistral").tokenize("x"),
                 millrace::Error);
}

TEST(Api, AModelMoves) {
    millrace::Model first = millrace::Model::load(kModel);
    millrace::Model second = std::move(first);
    EXPECT_FALSE(second.generate("Once", greedy(3)).tokens.empty());
}

}  // namespace
