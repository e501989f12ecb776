#include "decode/conversation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "decode/prompt.h"
#include "model/io/random.h"
#include "model/model.h"
#include "temp_folder.h"

namespace mr::decode::conversation_test {
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

std::unique_ptr<model::Engine> engine_of(std::shared_ptr<const model::Model> model,
                                         std::int64_t context) {
    model::EngineOptions options;
    options.context = context;
    options.threads = 1;
    return model::make_engine(std::move(model), options);
}

// The reference models have no template, and would continue texts.
text::ChatOptions plain() { return {.template_file = "plain"}; }

// A lost device answers no further question: the program ends.
TEST(Conversation, GoesOnAfterWhatAPersonCanDoBetter) {
    EXPECT_TRUE(may_go_on(ErrorKind::input));
    EXPECT_TRUE(may_go_on(ErrorKind::usage));
    EXPECT_FALSE(may_go_on(ErrorKind::device));
}

TEST(Conversation, KeepsItsHistory) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    Conversation chat(engine, "Be brief.", plain());
    const Generated first = chat.answer("Hello", greedy(5));
    const Generated second = chat.answer("And you?", greedy(5));
    ASSERT_EQ(chat.messages().size(), 5u);
    EXPECT_EQ(chat.messages()[0].role, "system");
    EXPECT_EQ(chat.messages()[2].content, first.text);
    EXPECT_EQ(chat.messages()[4].content, second.text);
    EXPECT_GT(second.prompt_tokens, first.prompt_tokens);
    EXPECT_LT(second.prefill.tokens, second.prompt_tokens);  // the first turn is in the cache
    chat.clear();
    EXPECT_EQ(chat.messages().size(), 1u);
    EXPECT_EQ(chat.answer("Hello", greedy(5)).ids, first.ids);
}

// A template is executed anew every turn; its text of earlier turns is in the cache.
TEST(Conversation, ATemplateFindsItsBeginningInTheCache) {
    const test::TempFolder folder;
    const std::string path = folder / "t.jinja";
    std::ofstream(path) << "{{ bos_token }}{{ strftime_now('%H:%M:%S') }}"
                           "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    Conversation chat(*opened_engine, "Be brief.", {.template_file = path});
    EXPECT_EQ(chat.writer().notice(), "");
    const Generated first = chat.answer("Hello", greedy(5));
    const Generated second = chat.answer("And you?", greedy(5));
    EXPECT_GT(second.prompt_tokens, first.prompt_tokens);
    EXPECT_LT(second.prefill.tokens, second.prompt_tokens);
    chat.clear();
    EXPECT_EQ(chat.answer("Hello", greedy(5)).ids, first.ids);
}

TEST(Conversation, ForgetsTheOldestTurnsAndKeepsTheSystemMessage) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 192);
    model::Engine& engine = *opened_engine;
    Conversation chat(engine, "Be brief.", plain());
    for (int i = 0; i < 10; ++i) {
        chat.answer("A question about the weather, number " + std::to_string(i), greedy(4));
    }
    EXPECT_GT(chat.forgotten(), 0);
    EXPECT_EQ(chat.messages().front().content, "Be brief.");
    EXPECT_EQ(chat.messages().size(), 1 + 2 * (10u - static_cast<unsigned>(chat.forgotten())));
}

TEST(Conversation, ATurnThatFailsIsNone) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 128);
    model::Engine& engine = *opened_engine;
    Conversation chat(engine, "", plain());
    const Generated first = chat.answer("Hello", greedy(3));
    EXPECT_THROW(chat.answer(std::string(4000, 'x'), greedy(3)), Error);
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages()[1].content, first.text);
    EXPECT_EQ(chat.forgotten(), 0);
    EXPECT_EQ(chat.answer("Go on", greedy(3)).ids.size(), 3u);
}

TEST(Conversation, AnAnswerThatWasStoppedStays) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    Conversation chat(engine, "", plain());
    const Generated made =
        chat.answer("Hello", greedy(100), [](std::string_view) { return false; });
    EXPECT_EQ(made.reason, StopReason::cancelled);
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages()[1].content, made.text);
}

TEST(Session, ALongPromptCanBeCancelled) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    Session session(engine);
    const std::vector<std::int32_t> prompt(300, *engine.model().tokenizer->bos());
    GenerateOptions options = greedy(5);
    int asked = 0;
    options.cancelled = [&] { return ++asked == 2; };
    bool shown = false;
    const Generated none =
        session.generate(prompt, options, [&](std::string_view) { return shown = true; });
    EXPECT_EQ(none.reason, StopReason::cancelled);
    EXPECT_TRUE(none.ids.empty());
    EXPECT_FALSE(shown);
    EXPECT_EQ(none.prompt_tokens, 300);
    EXPECT_GT(none.prefill.tokens, 0);
    EXPECT_LT(none.prefill.tokens, 300);
    // Computed tokens are not computed again, and the answer equals that of a prompt in one piece.
    const Generated rest = session.generate(prompt, greedy(5));
    EXPECT_EQ(rest.prefill.tokens, 300 - none.prefill.tokens);
    const std::unique_ptr<model::Engine> opened_fresh = engine_of(reference("llama2"), 512);
    model::Engine& fresh = *opened_fresh;
    EXPECT_EQ(Session(fresh).generate(prompt, greedy(5)).ids, rest.ids);
}

TEST(Session, CancelledBetweenTokens) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    Session session(engine);
    const std::int32_t bos = *engine.model().tokenizer->bos();
    GenerateOptions options = greedy(100);
    int asked = 0;
    options.cancelled = [&] { return ++asked > 4; };  // polled before every pass
    const Generated made = session.generate({&bos, 1}, options);
    EXPECT_EQ(made.reason, StopReason::cancelled);
    EXPECT_EQ(made.ids.size(), 4u);
    const auto read = static_cast<double>(made.decode.ledger.total().bytes_read);
    EXPECT_GT(made.decode.ledger.total().bytes_written, 0u);
    EXPECT_DOUBLE_EQ(made.decode.bytes_per_token(), read / 3);  // three of the four were fed back
    EXPECT_DOUBLE_EQ(made.decode.bytes_per_second(), read / made.decode.seconds);
}

// The end of the text is held back, because a stop string may begin there.
TEST(Session, OnTextIsNotCalledAgainAfterItSaidNo) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    const std::int32_t bos = *engine.model().tokenizer->bos();
    std::string all;
    std::size_t length = 0;  // of the text up to the first piece of several bytes
    Session(engine).generate({&bos, 1}, greedy(100), [&](std::string_view text) {
        all += text;
        if (length == 0 && text.size() > 1) length = all.size();
        return true;
    });
    ASSERT_GT(length, 1u);
    GenerateOptions options = greedy(100);
    options.stop = {std::string(1, all[length - 1]) + "\x01\x01"};
    std::string shown;
    bool refused = false;
    const Generated made = Session(engine).generate({&bos, 1}, options, [&](std::string_view text) {
        EXPECT_FALSE(refused);
        shown += text;
        refused = shown.size() == length - 1;
        return !refused;
    });
    EXPECT_TRUE(refused);
    EXPECT_EQ(made.reason, StopReason::cancelled);
    EXPECT_EQ(made.text, shown);
}

TEST(Session, AsManyTokensAsThereCanBe) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 64);
    model::Engine& engine = *opened_engine;
    const std::int32_t bos = *engine.model().tokenizer->bos();
    const Generated made =
        Session(engine).generate({&bos, 1}, greedy(std::numeric_limits<int>::max()));
    EXPECT_EQ(made.reason, StopReason::context_full);
    EXPECT_EQ(made.ids.size(), 64u);
}

TEST(Conversation, ATurnCancelledBeforeItsAnswerIsNone) {
    const std::unique_ptr<model::Engine> opened_engine = engine_of(reference("llama2"), 512);
    model::Engine& engine = *opened_engine;
    Conversation chat(engine, "", plain());
    GenerateOptions options = greedy(5);
    options.cancelled = [] { return true; };
    EXPECT_EQ(chat.answer("Hello", options).reason, StopReason::cancelled);
    EXPECT_TRUE(chat.messages().empty());
    EXPECT_EQ(chat.answer("Hello", greedy(5)).ids.size(), 5u);
}

TEST(RandomModel, MoreThanTheMachineHoldsIsRefusedBeforeItIsTaken) {
    model::ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 64;
    spec.dim = spec.hidden = 16384;
    spec.layers = 4096;
    spec.heads = spec.kv_heads = 128;
    spec.head_dim = spec.rope.rotary = 128;
    spec.context = 64;
    try {
        model::random_model(spec, DType::f32, 1);
        FAIL() << "there was memory for it";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_NE(std::string(error.what()).find("needs more than"), std::string::npos)
            << error.what();
    }
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

TEST(Conversation, GoesOnFromMessagesThatAreGiven) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Conversation first(*engine, "Be brief.", plain());
    first.answer("Hello", greedy(5));
    const Generated want = first.answer("And you?", greedy(5));

    Conversation other(*engine, "", plain());
    other.answer("Something else", greedy(3));
    const auto& said = first.messages();
    other.restore({said[0], said[1], said[2]});
    EXPECT_EQ(other.answer("And you?", greedy(5)).ids, want.ids);
    EXPECT_EQ(other.messages().size(), 5u);
    other.clear();  // their system prompt stays
    ASSERT_EQ(other.messages().size(), 1u);
    EXPECT_EQ(other.messages()[0].content, "Be brief.");
    other.restore({});
    EXPECT_TRUE(other.messages().empty());
}

TEST(Conversation, TheSystemPromptCanBeSetAndTakenAway) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Conversation with(*engine, "Be brief.", plain()), later(*engine, "", plain());
    const Generated without = later.answer("Hello", greedy(6));
    later.clear();
    later.set_system("Be brief.");
    EXPECT_EQ(later.answer("Hello", greedy(6)).ids, with.answer("Hello", greedy(6)).ids);
    later.set_system("Be long.");
    ASSERT_EQ(later.messages().size(), 3u);  // the turn stays
    EXPECT_EQ(later.messages()[0].content, "Be long.");
    later.set_system("");
    later.clear();
    EXPECT_EQ(later.answer("Hello", greedy(6)).prompt_tokens, without.prompt_tokens);
}

TEST(Conversation, SaysWhatItForgot) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 128);
    Conversation chat(*engine, "", plain());
    std::vector<std::string> dropped;
    for (int i = 0; i < 8; ++i) {
        chat.answer("This is question number " + std::to_string(i) + ", of eight.", greedy(8));
        dropped.insert(dropped.end(), chat.dropped().begin(), chat.dropped().end());
    }
    ASSERT_GT(dropped.size(), 1u);
    EXPECT_EQ(static_cast<int>(dropped.size()), chat.forgotten());
    for (std::size_t i = 0; i < dropped.size(); ++i) {
        EXPECT_EQ(dropped[i], "This is question number " + std::to_string(i) + ", of eight.");
    }
    EXPECT_THROW(chat.answer(std::string(2000, 'x'), greedy(1)), Error);
    EXPECT_TRUE(chat.dropped().empty());  // the failed turn does not count
}

TEST(Conversation, AModelWithoutATemplateContinuesTexts) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Conversation chat(*engine, "");
    ASSERT_TRUE(chat.writer().continues_texts());
    const auto want = [&](const std::string& text) {
        return Session(*engine).generate(encode_prompt(engine->model(), text), greedy(6)).ids;
    };
    EXPECT_EQ(chat.answer("Once upon a time", greedy(6)).ids, want("Once upon a time"));
    // Every text is one of its own: nothing of the first is in the second.
    EXPECT_EQ(chat.answer("The dog", greedy(6)).ids, want("The dog"));
    ASSERT_EQ(chat.messages().size(), 2u);
    EXPECT_EQ(chat.messages()[0].content, "The dog");
    EXPECT_EQ(chat.answer_again(greedy(6)).ids, want("The dog"));
    EXPECT_THROW(chat.answer(std::string(4000, 'x'), greedy(3)), Error);
    EXPECT_EQ(chat.messages()[0].content, "The dog");
    EXPECT_THROW(chat.set_system("Be brief."), Error);
    EXPECT_THROW(chat.restore({text::ChatMessage{"system", "Be brief."}}), Error);
    EXPECT_THROW(Conversation(*engine, "Be brief."), Error);
}

TEST(Conversation, TakesATurnBack) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Conversation chat(*engine, "Be brief.", plain());
    EXPECT_EQ(chat.undo(), std::nullopt);
    const Generated first = chat.answer("Hello", greedy(5));
    const Generated second = chat.answer("And you?", greedy(5));
    EXPECT_EQ(chat.turns(), 2u);
    EXPECT_EQ(chat.undo(), "And you?");
    ASSERT_EQ(chat.messages().size(), 3u);
    EXPECT_EQ(chat.messages()[2].content, first.text);
    EXPECT_EQ(chat.answer("And you?", greedy(5)).ids, second.ids);
    EXPECT_EQ(chat.undo(), "And you?");
    EXPECT_EQ(chat.undo(), "Hello");
    EXPECT_EQ(chat.undo(), std::nullopt);
    EXPECT_EQ(chat.messages().size(), 1u);
}

TEST(Conversation, AnswersAgain) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Conversation chat(*engine, "", plain());
    chat.answer("Hello", greedy(5));
    const Generated second = chat.answer("And you?", greedy(5));
    GenerateOptions other = greedy(7);
    other.sampling.temperature = 2;
    const Generated again = chat.answer_again(other);
    EXPECT_EQ(again.prompt_tokens, second.prompt_tokens);
    ASSERT_EQ(chat.messages().size(), 4u);
    EXPECT_EQ(chat.messages()[3].content, again.text);
    // Cancelled before its first token, or failed: the answer stays.
    other.cancelled = [] { return true; };
    EXPECT_TRUE(chat.answer_again(other).ids.empty());
    ASSERT_EQ(chat.messages().size(), 4u);
    EXPECT_EQ(chat.messages()[3].content, again.text);
    other.cancelled = {};
    other.sampling.top_p = 7;
    EXPECT_THROW(chat.answer_again(other), Error);
    ASSERT_EQ(chat.messages().size(), 4u);
    EXPECT_EQ(chat.messages()[3].content, again.text);
}

// What a person sees while a long prompt is read.
TEST(Session, TellsHowMuchOfThePromptIsRead) {
    const std::unique_ptr<model::Engine> engine = engine_of(reference("llama2"), 512);
    Session session(*engine);
    const std::vector<std::int32_t> prompt(300, *engine->model().tokenizer->bos());
    GenerateOptions options = greedy(5);
    options.cancelled = [] { return false; };  // prompts are read in pieces
    std::vector<std::int64_t> told;
    bool text = false;
    options.on_reading = [&](std::int64_t done, std::int64_t all) {
        EXPECT_FALSE(text) << "before the first text";
        EXPECT_EQ(all, 300);
        told.push_back(done);
    };
    session.generate(prompt, options, [&](std::string_view) { return text = true; });
    ASSERT_GT(told.size(), 2u);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_GT(told.front(), 0);
    EXPECT_LT(told.front(), 300);
    EXPECT_EQ(told.back(), 300);
    EXPECT_EQ(std::count(told.begin(), told.end(), 300), 1);
}

}  // namespace
}  // namespace mr::decode::conversation_test
