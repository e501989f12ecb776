// Conversations without an end: one sequence that continues from turn to turn.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "decode/conversation.h"
#include "decode/live_sequence.h"
#include "live_cases.h"
#include "model/model.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::decode {
namespace {

using test::append;
using test::expect_equal;
using test::sampled;

constexpr model::Stream kStream{4, 44};
constexpr int kBatch =
    64;  // tokens in a piece of a prompt: a sequence can be truncated by this many, at least

// Ids are bytes, so that a text has one encoding; higher ids print nothing. Some answers are not
// valid UTF-8.
text::Tokenizer::Ptr byte_tokenizer(int vocab) {
    text::TokenizerData data = text::Tokenizer::bytes(vocab)->data();
    for (std::size_t i = 256; i < data.types.size(); ++i) {
        data.types[i] = text::TokenType::control;
    }
    return text::Tokenizer::from_data(data);
}

std::unique_ptr<model::Engine> engine_of(const char* name) {
    auto model = std::make_shared<model::Model>(model::load_model(test::reference(name)));
    model->tokenizer = byte_tokenizer(model->spec.vocab);
    model::EngineOptions options;
    options.threads = 1;
    options.max_batch = kBatch;
    options.stream = kStream;
    return model::make_engine(model, options);
}

std::vector<std::int32_t> some_tokens(int count, int salt) {
    return test::some_tokens(count, salt, 47);
}

// The answer of a separate sequence.
Generated alone(const char* name, const std::vector<std::int32_t>& prompt,
                GenerateOptions options) {
    const auto engine = engine_of(name);
    options.stream = kStream;
    return Session(*engine).generate(prompt, options);
}

TEST(LiveSequence, HasTheBitsOfAFreshOneAndIsFedWhatIsNew) {
    for (const char* name : {"llama2", "mistral", "qwen2-window", "gpt-neox"}) {
        SCOPED_TRACE(name);
        const auto engine = engine_of(name);
        LiveSequence live(*engine, kStream);
        std::vector<std::int32_t> history;
        // Turns of one token, and of more than a pass and the window hold.
        int turn = 0;
        for (const int count : {5, 1, 30, 150, 2, 64, 300, 17}) {
            SCOPED_TRACE(turn);
            append(history, some_tokens(count, ++turn));
            const std::size_t held = live.tokens().size();
            const Generated made = live.generate(history, sampled(9));
            expect_equal(made, alone(name, history, sampled(9)));
            EXPECT_EQ(made.prefill.tokens, static_cast<std::int64_t>(history.size() - held));
            // All but the last token, which is fed with the next turn.
            EXPECT_LE(made.prefill.tokens, count + 1);
            append(history, made.ids);
            EXPECT_EQ(live.tokens().size(), history.size() - 1);
            engine->cache().check_books();
        }
    }
}

TEST(LiveSequence, GoesBackOrBeginsAnew) {
    for (const char* name : {"llama2", "gpt-neox"}) {
        SCOPED_TRACE(name);
        const auto engine = engine_of(name);
        LiveSequence live(*engine, kStream);
        const std::vector<std::int32_t> history = some_tokens(400, 1);
        live.generate(history, sampled(8));
        const auto branch = [&](std::size_t length, int salt) {
            std::vector<std::int32_t> other(history.begin(),
                                            history.begin() + static_cast<std::ptrdiff_t>(length));
            append(other, some_tokens(6, salt));
            return other;
        };
        // Back by less than a pass: the window is still in the cache.
        for (const std::size_t length : {400u, 390u, 365u}) {
            SCOPED_TRACE(length);
            const auto prompt = branch(length, 2);
            const Generated made = live.generate(prompt, sampled(8));
            expect_equal(made, alone(name, prompt, sampled(8)));
            EXPECT_EQ(made.prefill.tokens, 6);
        }
        // Back by more: everything goes through the window again.
        const auto far = branch(120, 3);
        const Generated made = live.generate(far, sampled(8));
        expect_equal(made, alone(name, far, sampled(8)));
        EXPECT_EQ(made.prefill.tokens, 126);
        // As long as no page was overwritten, a sequence can go back to any length.
        live.generate(some_tokens(40, 5), sampled(4));
        const auto few = some_tokens(3, 5);
        const Generated last = live.generate(few, sampled(4));
        expect_equal(last, alone(name, few, sampled(4)));
        EXPECT_EQ(last.prefill.tokens, 1);  // the one with the logits to draw from
        engine->cache().check_books();
    }
}

TEST(LiveSequence, APromptThatWasCancelledGoesOnWhereItStopped) {
    const auto engine = engine_of("llama2");
    LiveSequence live(*engine, kStream);
    const auto history = some_tokens(300, 1);
    GenerateOptions options = sampled(5);
    int asked = 0;
    options.cancelled = [&] { return ++asked == 3; };
    const Generated none = live.generate(history, options);
    EXPECT_EQ(none.reason, StopReason::cancelled);
    EXPECT_TRUE(none.ids.empty());
    EXPECT_EQ(live.tokens().size(), static_cast<std::size_t>(none.prefill.tokens));
    const Generated made = live.generate(history, sampled(5));
    EXPECT_EQ(made.prefill.tokens, 300 - none.prefill.tokens);
    expect_equal(made, alone("llama2", history, sampled(5)));
}

TEST(LiveSequence, AfterAnErrorItIsEmpty) {
    const auto engine = engine_of("llama2");
    const std::int64_t free = engine->cache().free_tokens();
    LiveSequence live(*engine, kStream);
    const auto history = some_tokens(100, 1);
    live.generate(history, sampled(5));
    EXPECT_LT(engine->cache().free_tokens(), free);
    std::vector<std::int32_t> wrong = history;
    wrong.push_back(1 << 20);
    EXPECT_THROW(live.generate(wrong, sampled(5)), Error);
    EXPECT_THROW(live.generate({}, sampled(5)), Error);
    EXPECT_TRUE(live.tokens().empty());
    EXPECT_EQ(engine->cache().free_tokens(), free);
    expect_equal(live.generate(history, sampled(5)), alone("llama2", history, sampled(5)));
}

// ---- conversations --------------------------------------------------------------------------

// The reference models have no template, and would continue texts.
text::ChatOptions live_plain() { return {.template_file = "plain"}; }

// The answer to the same messages in a new conversation.
Generated afresh(const char* name, const Conversation& chat, const std::string& message,
                 const GenerateOptions& options, const text::ChatOptions& how = live_plain()) {
    const auto engine = engine_of(name);
    Conversation other(*engine, "", how, kStream);
    other.restore(chat.messages());
    return other.answer(message, options);
}

std::string question(int i) { return "What of the mill, and of wheel number " + std::to_string(i); }

TEST(LiveConversation, GoesOnFarPastTheContext) {
    const auto engine = engine_of("llama2");
    ASSERT_LE(engine->options().context, 256);
    Conversation chat(*engine, "Be brief.", live_plain(), kStream);
    int told = 0;
    std::int64_t tokens = 0, free = -1;
    for (int i = 0; i < 40; ++i) {
        SCOPED_TRACE(i);
        const GenerateOptions options = sampled(12, static_cast<std::uint64_t>(i));
        const Generated want = afresh("llama2", chat, question(i), options);
        const Generated made = chat.answer(question(i), options);
        expect_equal(made, want);
        // The answer, whose invalid bytes became U+FFFD, + "\nUser: " + question + "\nAssistant:",
        // whatever came before.
        if (i > 0) {
            EXPECT_LE(made.prefill.tokens, 110);
        }
        EXPECT_EQ(chat.first_left(), told == 0 && made.evicted > 0);
        told += chat.first_left();
        EXPECT_EQ(chat.evicted(), made.evicted);
        tokens = made.prompt_tokens;
        if (free >= 0) {
            EXPECT_EQ(engine->cache().free_tokens(), free);
        }
        free = engine->cache().free_tokens();
    }
    EXPECT_EQ(told, 1);
    EXPECT_GT(tokens, 2000);
    EXPECT_EQ(chat.forgotten(), 0);
    EXPECT_EQ(chat.messages().size(), 81u);
}

// Answers that the format writes unchanged are not fed again.
TEST(LiveConversation, FeedsWhatIsNewAlone) {
    const test::TempFolder folder;
    const std::string path = folder / "t.jinja";
    std::ofstream(path) << "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
                           "{% if add_generation_prompt %}[assistant]{% endif %}";
    const text::ChatOptions how{.template_file = path};
    const auto engine = engine_of("llama2");
    const text::Tokenizer& bytes = *engine->model().tokenizer;
    Conversation chat(*engine, "", how, kStream);
    std::vector<std::int32_t> history;
    int fed_as_drawn = 0;
    bool as_drawn = false;
    for (int i = 0; i < 40; ++i) {
        SCOPED_TRACE(i);
        append(history,
               bytes.encode(i == 0 ? "[user]go on|[assistant]" : "|[user]go on|[assistant]"));
        const GenerateOptions options = sampled(2, static_cast<std::uint64_t>(i));
        const Generated made = chat.answer("go on", options);
        expect_equal(made, alone("llama2", history, options));
        // The last token, which was drawn but not fed, is part of the new tokens.
        if (i > 0) {
            EXPECT_LE(made.prefill.tokens, 25 + 3 * 2);
        }
        if (as_drawn) {
            EXPECT_EQ(made.prefill.tokens, 25);
        }
        // Invalid UTF-8 is written as U+FFFD from there on; the tokens before it are kept.
        std::string text = made.text;
        as_drawn = true;
        for (const std::int32_t id : made.ids) {
            const std::string piece = bytes.piece(id);
            as_drawn = as_drawn && text.starts_with(piece);
            if (!as_drawn) break;
            history.push_back(id);
            text.erase(0, piece.size());
        }
        append(history, bytes.encode(text));
        fed_as_drawn += as_drawn;
    }
    EXPECT_GT(fed_as_drawn, 3);
}

// The next answer is that of a conversation which has only been told the messages.
void expect_as_afresh(Conversation& chat, const std::string& message) {
    const Generated want = afresh("llama2", chat, message, sampled(12));
    expect_equal(chat.answer(message, sampled(12)), want);
}

TEST(LiveConversation, GoesBackInTime) {
    const auto engine = engine_of("llama2");
    Conversation chat(*engine, "Be brief.", live_plain(), kStream);
    const Generated first = chat.answer(question(0), sampled(12));
    for (int i = 1; i < 8; ++i) chat.answer(question(i), sampled(12));
    const std::vector<text::ChatMessage> kept = chat.messages();
    EXPECT_GT(chat.evicted(), 0);
    // Cancelled before its answer: the turn does not count.
    GenerateOptions cancelled = sampled(12);
    int asked = 0;
    cancelled.cancelled = [&] { return ++asked == 3; };
    EXPECT_TRUE(chat.answer(question(100) + std::string(300, '.'), cancelled).ids.empty());
    EXPECT_GT(chat.evicted(), 0);
    EXPECT_FALSE(chat.first_left());
    expect_as_afresh(chat, question(8));
    // Ended early: the partial answer stays.
    const Generated half =
        chat.answer(question(9), sampled(50), [](std::string_view) { return false; });
    EXPECT_EQ(half.reason, StopReason::cancelled);
    expect_as_afresh(chat, question(10));
    // Another system prompt comes before everything.
    chat.set_system("Be long.");
    expect_as_afresh(chat, question(11));
    chat.restore(kept);
    expect_as_afresh(chat, question(12));
    EXPECT_TRUE(chat.first_left());  // after loading
    chat.clear();
    EXPECT_EQ(chat.evicted(), 0);
    expect_equal(chat.answer(question(0), sampled(12)), first);
    EXPECT_EQ(chat.first_left(), first.evicted > 0);
    engine->cache().check_books();
}

// Templates may write an earlier answer differently, for example without a model's
// reasoning.
TEST(LiveConversation, ATemplateThatRewritesIsEncodedAnew) {
    const test::TempFolder folder;
    const std::string path = folder / "t.jinja";
    std::ofstream(path) << "{% for m in messages %}[{{ m.role }}]"
                           "{{ '...' if m.role == 'assistant' else m.content }}\n{% endfor %}"
                           "{% if add_generation_prompt %}[assistant]{{ messages | length }}"
                           "{% endif %}";
    const text::ChatOptions how{.template_file = path};
    const auto engine = engine_of("llama2");
    Conversation chat(*engine, "", how, kStream);
    for (int i = 0; i < 8; ++i) {
        SCOPED_TRACE(i);
        const Generated want = afresh("llama2", chat, question(i), sampled(80), how);
        expect_equal(chat.answer(question(i), sampled(80)), want);
    }
    EXPECT_GT(chat.evicted(), 0);
}

TEST(LiveConversation, AMessageOfAnyLength) {
    const auto engine = engine_of("llama2");
    Conversation chat(*engine, "", live_plain(), kStream);
    const std::string book(5000, 'x');
    const Generated made = chat.answer(book, sampled(5));
    EXPECT_EQ(made.ids.size(), 5u);
    EXPECT_GT(made.evicted, 4900);
    EXPECT_TRUE(chat.first_left());
}

}  // namespace
}  // namespace mr::decode
