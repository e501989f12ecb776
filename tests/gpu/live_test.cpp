// A sequence that continues from turn to turn on a GPU: each turn has the bits of a fresh sequence
// with the same tokens in the same forms, and conversations have the same answers for any size of
// passes.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/conversation.h"
#include "decode/live_cases.h"
#include "decode/live_sequence.h"
#include "decode/scheduler.h"
#include "gpu/engines.h"
#include "model/io/random.h"
#include "temp_folder.h"

namespace mr::decode {
namespace {

using test::append;
using test::expect_equal;
using test::sampled;

using Text = std::vector<std::int32_t>;

constexpr model::Stream kStream{4, 90};
constexpr int kVocab = 256;  // ids are bytes

struct Shape {
    const char* name;
    DType type;
};
constexpr Shape kShapes[] = {
    {"stories-42m", DType::f32}, {"llama-3-8b", DType::q8_0}, {"pythia-2.8b", DType::bf16}};

class GpuLive : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static test::OnDevice load(const Shape& shape) {
        test::OnDevice out = test::to_device(
            model::deferred_random_model(test::small_shape(shape.name, kVocab), shape.type, 11));
        out.model->tokenizer = text::Tokenizer::bytes(kVocab);
        return out;
    }
};

// As in chat: a plan that depends on the window.
model::EngineOptions options_of(int max_batch) {
    model::EngineOptions options;
    options.max_batch = max_batch;
    options.stream = kStream;
    return options;
}
constexpr int kPiece = 128;  // tokens per pass of the live sequence
constexpr int kWhole = 512;  // ... of the fresh one, more than any turn

Text some_tokens(int count, int salt) { return test::some_tokens(count, salt, kVocab); }

// A turn of a sequence: the tokens given at once, and those drawn and fed back, all but the last
// token of an answer.
struct Turn {
    Text given, fed;
};

// The answer of a separate sequence to `prompt`, which begins with these turns.
Generated afresh(model::Engine& engine, const std::vector<Turn>& turns, const Text& prompt,
                 GenerateOptions options) {
    model::KvCache& cache = engine.cache();
    const model::SeqId seq = cache.open();
    cache.set_stream(seq, kStream);
    EXPECT_TRUE(engine.try_reserve(seq, 0, model::Engine::kMostPositions));
    const auto give = [&](const Text& tokens, model::Form form) {
        if (tokens.empty()) return;
        const model::BatchItem item{
            .seq = seq, .tokens = tokens, .logits = model::BatchItem::Logits::none, .form = form};
        engine.submit({&item, 1});
    };
    for (const Turn& turn : turns) {
        give(turn.given, model::form_of_prompt(static_cast<std::int64_t>(turn.given.size())));
        give(turn.fed, model::Form::decode);
    }
    options.stream = kStream;
    Scheduler scheduler(engine);
    const Scheduler::Id id = scheduler.add(prompt, options, {}, seq);
    while (scheduler.step()) {
    }
    cache.check_books();
    cache.close(seq);
    return *scheduler.take(id);
}

TEST_F(GpuLive, HasTheBitsOfAFreshOneAndIsFedWhatIsNew) {
    for (const Shape& shape : kShapes) {
        SCOPED_TRACE(std::string(shape.name) + " " + dtype_name(shape.type));
        const test::OnDevice loaded = load(shape);
        const auto engine = loaded.engine(options_of(kPiece));
        const auto fresh = loaded.engine(options_of(kWhole));
        LiveSequence live(*engine, kStream);
        Text history;
        std::vector<Turn> turns;
        int number = 0;
        // Turns in both forms: of one token, and of more than a pass and the window hold.
        for (const int count : {5, 1, 30, 150, 2, 64, 300, 17}) {
            SCOPED_TRACE(number);
            append(history, some_tokens(count, ++number));
            const std::size_t held = live.tokens().size();
            const Generated made = live.generate(history, sampled(9));
            expect_equal(made, afresh(*fresh, turns, history, sampled(9)));
            if (HasFailure()) return;
            EXPECT_EQ(made.prefill.tokens, static_cast<std::int64_t>(history.size() - held));
            turns.push_back({{history.begin() + static_cast<std::ptrdiff_t>(held), history.end()},
                             {made.ids.begin(), made.ids.end() - 1}});
            append(history, made.ids);
            // A live sequence does not run ahead: it holds no token that its text lacks.
            EXPECT_EQ(live.tokens().size(), history.size() - 1);
            engine->cache().check_books();
        }
    }
}

TEST_F(GpuLive, GoesBackOrBeginsAnew) {
    for (const Shape& shape : kShapes) {
        SCOPED_TRACE(std::string(shape.name) + " " + dtype_name(shape.type));
        const test::OnDevice loaded = load(shape);
        const auto engine = loaded.engine(options_of(kPiece));
        const auto fresh = loaded.engine(options_of(kWhole));
        LiveSequence live(*engine, kStream);
        const Text history = some_tokens(400, 1);
        live.generate(history, sampled(8));
        const auto first = [&](std::size_t length) {
            return Text(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(length));
        };
        const auto branch = [&](std::size_t length, int salt) {
            Text other = first(length);
            append(other, some_tokens(6, salt));
            return other;
        };
        // Back by less than a pass: the window is still in the cache.
        for (const std::size_t length : {400u, 390u, 320u}) {
            SCOPED_TRACE(length);
            const Text prompt = branch(length, 2);
            const Generated made = live.generate(prompt, sampled(8));
            expect_equal(made, afresh(*fresh, {{first(length), {}}}, prompt, sampled(8)));
            EXPECT_EQ(made.prefill.tokens, 6);
        }
        // Back by more: everything goes through the window again.
        const Text far = branch(120, 3);
        const Generated made = live.generate(far, sampled(8));
        expect_equal(made, afresh(*fresh, {}, far, sampled(8)));
        EXPECT_EQ(made.prefill.tokens, 126);
        engine->cache().check_books();
        if (HasFailure()) return;
    }
}

// Passes of other sizes, with and without captured steps and the step in one kernel.
TEST_F(GpuLive, AConversationHasTheSameAnswersOnEveryEngine) {
    const test::TempFolder folder;
    const std::string path = folder / "t.jinja";
    std::ofstream(path) << "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
                           "{% if add_generation_prompt %}[assistant]{% endif %}";
    const text::ChatOptions how{.template_file = path};
    for (const Shape& shape : kShapes) {
        SCOPED_TRACE(std::string(shape.name) + " " + dtype_name(shape.type));
        const test::OnDevice loaded = load(shape);
        const auto engine = loaded.engine(options_of(kPiece));
        model::EngineOptions other_options = options_of(kWhole);
        other_options.graph = other_options.persistent = false;
        const auto other_engine = loaded.engine(other_options);
        Conversation chat(*engine, "Be brief.", how, kStream);
        Conversation other(*other_engine, "Be brief.", how, kStream);
        const std::int64_t free = engine->cache().free_tokens();
        int told = 0;
        std::int64_t held = -1;
        for (int i = 0; i < 16; ++i) {
            SCOPED_TRACE(i);
            const std::string question =
                "What of wheel " + std::to_string(i) + std::string(i % 5 == 4 ? 200 : 0, '?');
            const GenerateOptions options = sampled(12, static_cast<std::uint64_t>(i));
            const Generated made = chat.answer(question, options);
            const Generated want = other.answer(question, options);
            expect_equal(made, want);
            EXPECT_EQ(made.prefill.tokens, want.prefill.tokens);
            // The last answer as the template writes it, at most three bytes for each of its own,
            // its "|", and "[user]" + question + "|[assistant]".
            if (i > 0) {
                EXPECT_LE(made.prefill.tokens,
                          3 * 12 + 20 + static_cast<std::int64_t>(question.size()));
            }
            EXPECT_EQ(chat.first_left(), told == 0 && made.evicted > 0);
            told += chat.first_left();
            const std::int64_t now = free - engine->cache().free_tokens();
            EXPECT_EQ(now, held < 0 ? now : held);
            held = now;
            engine->cache().check_books();
            if (HasFailure()) return;
        }
        EXPECT_EQ(told, 1);
        EXPECT_EQ(chat.forgotten(), 0);
    }
}

}  // namespace
}  // namespace mr::decode
