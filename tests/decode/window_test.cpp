// Models with a window in all layers: sequences use the window's pages as a ring, share what they
// can, and have the same bits as sequences that hold all their pages.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "decode/eval.h"
#include "decode/scheduler.h"
#include "decode/scheduler_cases.h"
#include "model/engine.h"
#include "model/model.h"
#include "sanitized.h"
#include "support.h"

namespace mr::decode::window_test {
namespace {

constexpr std::int64_t kContext = 3000;
constexpr std::int64_t kPage = model::KvCache::kPageTokens;
// Pages of a ring: for single tokens, which see 12 positions, and for pieces of 96 tokens.
constexpr std::int64_t kAnswer = 2, kPieces = 5;

std::shared_ptr<const model::Model> window_model() {
    static const auto model =
        std::make_shared<const model::Model>(model::load_model(test::reference("mistral")));
    return model;
}

std::unique_ptr<model::Engine> engine_of(int sequences, std::int64_t pool, int max_batch = 96) {
    model::EngineOptions options;
    options.threads = 1;
    options.context = kContext;
    options.max_sequences = sequences;
    options.max_batch = max_batch;
    options.pool = pool;
    return model::make_engine(window_model(), options);
}
// Room for whole sequences, whose prompts are one pass.
std::unique_ptr<model::Engine> plain_engine() { return engine_of(1, kContext, 2000); }

test::Order order_of(int prompt, int tokens, std::uint64_t seed = 0) {
    test::Order order;
    for (int i = 0; i < prompt; ++i) {
        order.prompt.push_back((i * 7919 + 17 * static_cast<int>(seed)) %
                               window_model()->spec.vocab);
    }
    order.options.max_tokens = tokens;
    order.options.ignore_end = true;
    order.options.sampling.seed = seed;
    return order;
}

// Runs one, and returns the maximum of pages in use.
std::int64_t most_held(model::Engine& engine, const test::Order& order, Generated& out) {
    Scheduler scheduler(engine);
    const Scheduler::Id id = scheduler.add(order.prompt, order.options);
    const std::int64_t all = engine.cache().page_count();
    std::int64_t most = 0;
    for (bool more = true; more;) {
        more = scheduler.step();
        engine.cache().check_books();
        most = std::max(most, all - engine.cache().free_tokens() / kPage);
    }
    out = *scheduler.take(id);
    return most;
}

TEST(Windows, TheWidestIsWhatALayerSees) {
    EXPECT_EQ(window_model()->spec.widest_window(), 12);
    model::ModelSpec spec = window_model()->spec;
    spec.own = spec.layer_specs();
    spec.own.back().mask.window = 40;
    EXPECT_EQ(spec.widest_window(), 40);
    spec.own.front().mask.window = 0;
    EXPECT_EQ(spec.widest_window(), 0);
    spec.own.front().mask.window = 8;
    spec.own.front().mask.sinks = 4;  // which stay
    EXPECT_EQ(spec.widest_window(), 0);
}

// Pages not needed for windows keep prompts and conversations.
TEST(Windows, TheDefaultPoolIsThatOfAModelWithoutWindows) {
    EXPECT_EQ(engine_of(1, 0)->options().pool, kContext);
    EXPECT_EQ(engine_of(7, 0)->options().pool, 7 * kContext);
    // A pool that holds a ring takes any text; a smaller one limits it as usual.
    EXPECT_EQ(engine_of(1, kPieces * kPage)->options().context, kContext);
    EXPECT_EQ(engine_of(1, kPieces * kPage - 1)->options().context, kPieces * kPage - 1);
}

TEST(Windows, AnAnswerGoesRound) {
    const auto plain = plain_engine();
    for (const int prompt : {1, 20, 64, 70}) {
        const auto engine = engine_of(1, 0);
        const test::Order order = order_of(prompt, 1500);
        Generated got;
        // The visible part of the prompt, or all of it, and the ring.
        EXPECT_LE(most_held(*engine, order, got), model::KvCache::pages_for(prompt) + kAnswer);
        test::expect_as_plain({&order, 1}, {got}, *plain);
    }
}

TEST(Windows, APromptForWhichThereIsNoRoomGoesRound) {
    const auto plain = plain_engine();
    for (const int prompt : {150, 700, 1999}) {
        const auto engine = engine_of(1, kPieces * kPage);
        const test::Order order = order_of(prompt, 300);
        Generated got;
        EXPECT_EQ(most_held(*engine, order, got), kPieces);
        test::expect_as_plain({&order, 1}, {got}, *plain);
    }
}

// No ring if it would take as many pages as all positions.
TEST(Windows, AShortTextHasItsPages) {
    const auto engine = engine_of(1, 0);
    Generated got;
    EXPECT_EQ(most_held(*engine, order_of(20, 60), got), 3);
}

TEST(Windows, EqualPromptsAreComputedOnce) {
    const auto engine = engine_of(8, 0);
    std::vector<test::Order> orders;
    for (std::uint64_t i = 0; i < 8; ++i) {
        orders.push_back(order_of(100, 400));
        orders.back().options.sampling.seed = i;
    }
    Scheduler::Totals totals;
    const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
    EXPECT_EQ(totals.prefill.tokens, 100);
    EXPECT_EQ(totals.found, 700);
    test::expect_as_plain(orders, got, *plain_engine());
    // The prompt can still be found, although its pages left the window long ago.
    const std::vector<Generated> again = test::run_orders(*engine, {orders.data(), 1}, &totals);
    EXPECT_EQ(totals.found, 96);  // whole pages: the answer continued in the last one
    EXPECT_EQ(again[0].ids, got[0].ids);
}

// Prompts that share prefixes, that fit and that do not, cancelled ones: in a small pool.
TEST(Windows, ManyHaveTheBitsOfPlainSequences) {
    const int requests = test::sanitized() ? 30 : 400;
    const auto orders =
        test::random_orders(requests, 9, window_model()->spec.vocab, 300, 200, model::kCut);
    const auto plain = plain_engine();
    for (const std::int64_t pool : {std::int64_t{6} * kPieces * kPage, kPieces * kPage + 7}) {
        const auto engine = engine_of(6, pool);
        Scheduler::Totals totals;
        const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
        EXPECT_GT(totals.found, requests);
        test::expect_as_plain(orders, got, *plain);
    }
}

TEST(Windows, AnEvaluationGoesRound) {
    model::Model loaded = model::load_model(test::reference("llama2"));  // it has a tokenizer
    loaded.spec.mask.window = 12;
    const auto model = std::make_shared<const model::Model>(std::move(loaded));
    std::string text;
    for (int i = 0; i < 300; ++i) text += "Once upon a time " + std::to_string(i * i) + ". ";
    const auto nll = [&](std::int64_t pool, int batch) {
        model::EngineOptions options;
        options.threads = 1;
        options.context = kContext;
        options.max_logits = options.max_batch = batch;
        options.pool = pool;
        const auto engine = model::make_engine(model, options);
        const EvalResult result = evaluate(*engine, text, {});
        EXPECT_GT(result.tokens, 500);
        return result.nll;
    };
    // If a whole text may be one pass, it has all its pages.
    EXPECT_EQ(nll(kPieces * kPage, 96), nll(2 * kContext, kContext));
}

// The prompt part of a conversation's history is found again, however long it is.
TEST(Windows, AConversationFindsItsPrompts) {
    const auto engine = engine_of(1, 0);
    test::Order order = order_of(70, 40);
    std::int64_t known = 0;  // tokens of the prompt before
    for (int turn = 0; turn < 12; ++turn) {
        Scheduler::Totals totals;
        const std::vector<Generated> got = test::run_orders(*engine, {&order, 1}, &totals);
        EXPECT_GE(totals.found, known / model::kCut * model::kCut) << turn;
        known = static_cast<std::int64_t>(order.prompt.size());
        order.prompt.insert(order.prompt.end(), got[0].ids.begin(), got[0].ids.end());
        order.prompt.insert(order.prompt.end(), 30, turn);
    }
}

// A mask that reaches further must not see released pages.
TEST(Windows, NoTokenSeesAPageThatWasGivenBack) {
    const auto engine = engine_of(1, kContext);
    const model::SeqId seq = engine->cache().open();
    const std::vector<std::int32_t> text = order_of(80, 1).prompt;
    model::BatchItem item{.seq = seq, .tokens = text};
    item.form = model::Form::prompt;
    engine->submit({&item, 1});
    engine->release(seq);
    EXPECT_EQ(engine->cache().base(seq), 64);  // 80 sees from 69 on
    item.tokens = std::span(text).first(1);
    item.mask = ops::AttentionMask{};
    EXPECT_THROW(engine->submit({&item, 1}), ContractError);
    item.mask->window = 17;
    EXPECT_NO_THROW(engine->submit({&item, 1}));  // 80 sees from 64 on
    item.mask->sinks = 1;
    EXPECT_THROW(engine->submit({&item, 1}), ContractError);
    item.mask.reset();
    EXPECT_NO_THROW(engine->submit({&item, 1}));
}

}  // namespace
}  // namespace mr::decode::window_test
