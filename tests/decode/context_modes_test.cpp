// evaluate() in its four modes.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "decode/eval.h"
#include "model/model.h"
#include "support.h"

namespace mr::decode {
namespace {

std::string text_of(int words) {
    std::string out;
    for (int i = 0; i < words; ++i) out += "abcdefghij"[(i * 7 + i / 3) % 10] + std::string(" x");
    return out;
}

EvalResult run(const std::shared_ptr<const model::Model>& model, const std::string& text,
               const EvalOptions& options, int max_batch = 96, const Progress& progress = {}) {
    model::EngineOptions engine;
    engine.threads = 1;
    engine.context = 64;
    engine.max_sequences = 3;
    engine.max_batch = engine.max_logits = max_batch;
    engine.stream = stream_of(options);
    return evaluate(*model::make_engine(model, engine), text, options, progress);
}

std::shared_ptr<model::Model> load(const char* name) {
    auto model = std::make_shared<model::Model>(model::load_model(test::reference(name)));
    if (!model->tokenizer) model->tokenizer = text::Tokenizer::bytes(model->spec.vocab);
    return model;
}

// As long as nothing is evicted, all modes give the same.
TEST(ContextModes, ShortTextsAreTheSame) {
    const auto model = load("llama2");
    const std::string text = text_of(12);
    const EvalResult full = run(model, text, {});
    ASSERT_LT(full.tokens, 60);
    for (const ContextMode mode :
         {ContextMode::window, ContextMode::streaming, ContextMode::recompute}) {
        SCOPED_TRACE(context_mode_name(mode));
        const EvalResult other = run(model, text, {.mode = mode, .stream = {4, 56}});
        EXPECT_EQ(other.tokens, full.tokens);
        EXPECT_EQ(other.bytes, full.bytes);
        EXPECT_EQ(other.nll, full.nll);
        EXPECT_EQ(other.evicted, 0);
        // The end of the document is predicted, but is not text.
        const EvalResult ends = run(model, text, {.ends = true, .mode = mode, .stream = {4, 56}});
        EXPECT_EQ(ends.tokens, full.tokens + 1);
        EXPECT_EQ(ends.bytes, full.bytes);
    }
}

// With one layer, streaming over sinks and a window equals a prompt of both: here with the window
// of the last tokens, which without sinks equals recompute.
TEST(ContextModes, AWindowOfOneLayerIsRecompute) {
    const auto model = load("llama2");
    model->weights.layers.resize(1);
    model->spec.layers = 1;
    const std::string text = text_of(150);
    const EvalOptions truth{.mode = ContextMode::recompute, .stream = {4, 28}};
    const EvalResult expected = run(model, text, truth);
    const EvalResult window = run(model, text, {.mode = ContextMode::window, .stream = {4, 28}});
    EXPECT_EQ(window.tokens, expected.tokens);
    EXPECT_NEAR(window.nll, expected.nll, 1e-6);
    EXPECT_EQ(window.evicted, window.tokens - 32);
    EXPECT_EQ(expected.evicted, window.evicted);
    // Sinks change the result.
    const EvalResult streaming =
        run(model, text, {.mode = ContextMode::streaming, .stream = {4, 28}});
    EXPECT_GT(std::fabs(streaming.nll - window.nll), 1e-4);
    EXPECT_EQ(streaming.evicted, window.evicted);
}

TEST(ContextModes, CutsAndSamplesDoNotMatter) {
    const auto model = load("gpt-neox");
    const std::string text = text_of(100);
    for (const ContextMode mode :
         {ContextMode::window, ContextMode::streaming, ContextMode::recompute}) {
        SCOPED_TRACE(context_mode_name(mode));
        const EvalOptions options{.mode = mode, .stream = {2, 19}};
        const EvalResult whole = run(model, text, options, 512),
                         cut = run(model, text, options, 70);
        EXPECT_EQ(whole.nll, cut.nll);
        // The curve has every token once.
        std::int64_t tokens = 0;
        double nats = 0;
        for (const EvalResult::Bucket& bucket : whole.curve) {
            tokens += bucket.tokens;
            nats += bucket.nats;
        }
        EXPECT_EQ(tokens, whole.tokens);
        EXPECT_NEAR(nats / static_cast<double>(tokens), whole.nll, 1e-12);
    }
    EvalOptions sampled{.mode = ContextMode::recompute, .stream = {2, 19}};
    sampled.sample = 10;
    EXPECT_EQ(run(model, text, sampled).tokens, 10);
    sampled.sample = 1 << 20;
    const EvalOptions all{.mode = ContextMode::recompute, .stream = {2, 19}};
    EXPECT_EQ(run(model, text, sampled).nll, run(model, text, all).nll);
}

// Samples are the same tokens in every mode, so that few of them can be compared.
TEST(ContextModes, SamplesAreTheSameTokens) {
    const auto model = load("llama2");
    const std::string short_text = text_of(12), long_text = text_of(100);
    for (const std::int64_t samples : {1, 7, 30, 1000}) {
        SCOPED_TRACE(samples);
        EvalOptions options{.mode = ContextMode::recompute, .stream = {4, 56}, .sample = samples};
        const EvalResult truth = run(model, short_text, options);
        EXPECT_EQ(truth.sample_tokens, truth.tokens);
        EXPECT_EQ(truth.sample_nll, truth.nll);
        for (const ContextMode mode :
             {ContextMode::full, ContextMode::window, ContextMode::streaming}) {
            SCOPED_TRACE(context_mode_name(mode));
            options.mode = mode;
            const EvalResult other = run(model, short_text, options);  // nothing leaves
            EXPECT_EQ(other.sample_tokens, truth.tokens);
            EXPECT_NEAR(other.sample_nll, truth.nll, 1e-12);
            options.ends = true;
            options.mode = ContextMode::recompute;
            const EvalResult ends = run(model, long_text, options);
            options.mode = mode;
            EXPECT_EQ(run(model, long_text, options).sample_tokens, ends.tokens);
            options.ends = false;
        }
    }
    EXPECT_EQ(run(model, short_text, {}).sample_tokens, 0);
    // If only some tokens are predicted, there is no mean over all.
    EvalOptions few{.mode = ContextMode::streaming, .stream = {4, 28}, .sample = 5};
    const EvalResult some = run(model, long_text, few);
    EXPECT_EQ(some.sample_tokens, 5);
    EXPECT_NE(some.sample_nll, some.nll);
}

// Even if the text is cut, a token keeps its position in the document.
TEST(ContextModes, CurvesHaveOneAxis) {
    const auto model = load("llama2");
    const std::string text = text_of(300);
    const EvalResult full = run(model, text, {}),
                     streaming =
                         run(model, text, {.mode = ContextMode::streaming, .stream = {4, 28}});
    ASSERT_GT(full.curve.size(), 3u);  // and the context has 64
    ASSERT_EQ(full.curve.size(), streaming.curve.size());
    for (std::size_t i = 0; i < full.curve.size(); ++i) {
        EXPECT_EQ(full.curve[i].tokens, streaming.curve[i].tokens) << i;
    }
}

// Also for one long document, and up to its end.
TEST(ContextModes, SayHowFarTheyAre) {
    const auto model = load("llama2");
    const std::string text = text_of(150) + "|" + text_of(150) + "|" + text_of(1000);
    for (const ContextMode mode :
         {ContextMode::full, ContextMode::window, ContextMode::streaming, ContextMode::recompute}) {
        SCOPED_TRACE(context_mode_name(mode));
        EvalOptions options{.split = "|", .limit = 2, .mode = mode, .stream = {4, 28}};
        int calls = 0;
        std::uint64_t last = 0;
        const auto hear = [&](std::string_view what, std::uint64_t done, std::uint64_t total) {
            EXPECT_TRUE(what.starts_with("evaluating"));
            EXPECT_EQ(total, 2 * text_of(150).size());
            EXPECT_GE(done, last);
            EXPECT_LE(done, total);
            last = done;
            ++calls;
        };
        run(model, text, options, 96, hear);
        if (mode != ContextMode::full) {  // it reads the beginning of each document
            EXPECT_EQ(last, 2 * text_of(150).size());
            EXPECT_GE(calls, 5);
        }
        // The callback may end it, in the middle of a document.
        const auto end = [](std::string_view, std::uint64_t, std::uint64_t) { throw 7; };
        EXPECT_THROW(run(model, text, options, 96, end), int);
    }
}

}  // namespace
}  // namespace mr::decode
