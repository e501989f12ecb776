#include "decode/conversation.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "decode/prompt.h"
#include "model/model.h"

namespace mr::decode {
namespace {

std::shared_ptr<const model::Model> reference(const char* name) {
    return std::make_shared<model::Model>(
        model::load_model(std::string(MR_SOURCE_DIR "/tests/reference/") + name));
}

GenerateOptions greedy(int tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.sampling.temperature = 0;
    options.ignore_end = true;
    return options;
}

model::Engine engine_of(std::shared_ptr<const model::Model> model, std::int64_t context) {
    model::EngineOptions options;
    options.context = context;
    options.threads = 1;
    return {std::move(model), options};
}

TEST(Conversation, KeepsItsHistory) {
    model::Engine engine = engine_of(reference("llama2"), 512);
    Conversation chat(engine, "Be brief.");
    const Generated first = chat.answer("Hello", greedy(5));
    const Generated second = chat.answer("And you?", greedy(5));
    ASSERT_EQ(chat.messages().size(), 5u);
    EXPECT_EQ(chat.messages()[0].role, "system");
    EXPECT_EQ(chat.messages()[2].content, first.text);
    EXPECT_EQ(chat.messages()[4].content, second.text);
    EXPECT_GT(second.prefill.tokens, first.prefill.tokens);
    chat.clear();
    EXPECT_EQ(chat.messages().size(), 1u);
    EXPECT_EQ(chat.answer("Hello", greedy(5)).ids, first.ids);
}

TEST(Conversation, ForgetsTheOldestTurnsAndKeepsTheSystemMessage) {
    model::Engine engine = engine_of(reference("llama2"), 192);
    Conversation chat(engine, "Be brief.");
    for (int i = 0; i < 10; ++i) {
        chat.answer("A question about the weather, number " + std::to_string(i), greedy(4));
    }
    EXPECT_GT(chat.forgotten(), 0);
    EXPECT_EQ(chat.messages().front().content, "Be brief.");
    EXPECT_EQ(chat.messages().size(), 1 + 2 * (10u - static_cast<unsigned>(chat.forgotten())));
}

TEST(Conversation, ATurnThatFailsIsNone) {
    model::Engine engine = engine_of(reference("llama2"), 128);
    Conversation chat(engine, "");
    const Generated first = chat.answer("Hello", greedy(3));
    EXPECT_THROW(chat.answer(std::string(4000, 'x'), greedy(3)), Error);
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages()[1].content, first.text);
    EXPECT_EQ(chat.forgotten(), 0);
    EXPECT_EQ(chat.answer("Go on", greedy(3)).ids.size(), 3u);
}

TEST(Conversation, AnAnswerThatWasStoppedStays) {
    model::Engine engine = engine_of(reference("llama2"), 512);
    Conversation chat(engine, "");
    const Generated made =
        chat.answer("Hello", greedy(100), [](std::string_view) { return false; });
    EXPECT_EQ(made.reason, StopReason::cancelled);
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages()[1].content, made.text);
}

TEST(Prompt, AnEmptyOneBeginsAText) {
    const auto llama = reference("llama2");
    EXPECT_EQ(encode_prompt(*llama, ""), std::vector<std::int32_t>{*llama->tokenizer->bos()});
    // GPT-2's tokenizer puts nothing before a text; an empty one begins with <|endoftext|>.
    EXPECT_EQ(encode_prompt(*reference("gpt2"), "").size(), 1u);
}

TEST(Prompt, AModelWithoutTokenizerIsAnError) {
    EXPECT_THROW(encode_prompt(*reference("mistral"), "x"), Error);
}

}  // namespace
}  // namespace mr::decode
