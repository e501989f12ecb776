// Texts without an end: requests that stream, beside others, in pages that go round.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "decode/scheduler.h"
#include "decode/scheduler_cases.h"
#include "model/engine.h"
#include "model/model.h"
#include "support.h"

namespace mr::decode {
namespace {

constexpr model::Stream kStream{4, 44};

std::unique_ptr<model::Engine> engine_of(const char* name, int sequences, std::int64_t pool = 0,
                                         int max_batch = 64) {
    model::EngineOptions options;
    options.threads = 1;
    options.context = 512;
    options.max_sequences = sequences;
    options.max_batch = max_batch;
    options.stream = kStream;
    options.pool = pool;
    return model::make_engine(
        std::make_shared<const model::Model>(model::load_model(test::reference(name))), options);
}

// Every text has the bits it has alone, whether it streams or not, and whatever runs beside it.
TEST(Streams, ManyHaveTheBitsOfEachAlone) {
    for (const char* name : {"llama2", "mistral", "qwen2-window", "gpt-neox"}) {
        SCOPED_TRACE(name);
        const auto engine = engine_of(name, 6, 1200);
        std::vector<test::Order> orders = test::random_orders(
            60, 5, engine->model().spec.vocab, 150, 120, static_cast<int>(engine->cut()));
        for (std::size_t i = 0; i < orders.size(); ++i) {
            if (i % 3 == 0) orders[i].options.stream = kStream;
            if (i % 3 == 1) orders[i].options.stream = {0, 20};
        }
        const std::vector<Generated> got = test::run_orders(*engine, orders);
        engine->cache().check_books();
        test::expect_as_plain(orders, got, *engine_of(name, 1, 512, 200));
    }
}

// A text goes on past every context in the same pages.
TEST(Streams, ATextGoesOnForEver) {
    const auto engine = engine_of("llama2", 1);
    const std::int64_t all = engine->cache().free_tokens();
    Scheduler scheduler(*engine);
    GenerateOptions options;
    options.max_tokens = 20000;
    options.ignore_end = true;
    options.stream = kStream;
    options.sampling.repeat_penalty = 1.1f;
    const Scheduler::Id id = scheduler.add({1, 5, 9}, options);
    std::int64_t held = 0;
    for (int steps = 0; scheduler.step(); ++steps) {
        const std::int64_t now = all - engine->cache().free_tokens();
        if (steps == 200) held = now;
        if (steps > 200 && scheduler.running() > 0) {
            ASSERT_EQ(now, held) << steps;
        }
    }
    const Generated made = *scheduler.take(id);
    EXPECT_EQ(made.ids.size(), 20000u);
    EXPECT_EQ(made.reason, StopReason::length);
    EXPECT_EQ(made.evicted, 3 + 20000 - 1 - 48);
    EXPECT_LE(held, 4 * model::KvCache::kPageTokens);
    engine->cache().check_books();
}

// A prompt of any length goes through a window that is shorter than a piece of it.
TEST(Streams, APromptLongerThanAnyContext) {
    const auto engine = engine_of("llama2", 1);
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 3000; ++i) prompt.push_back((i * 7919 + 3) % engine->model().spec.vocab);
    GenerateOptions options;
    options.max_tokens = 5;
    options.ignore_end = true;
    options.stream = kStream;
    Scheduler scheduler(*engine);
    const Scheduler::Id id = scheduler.add(prompt, options);
    while (scheduler.step()) engine->cache().check_books();
    EXPECT_EQ(scheduler.take(id)->ids.size(), 5u);
    options.stream = {};
    EXPECT_THROW(scheduler.add(prompt, options), Error);
}

// ... and several of them, with room to keep the prompt but no table for it.
TEST(Streams, AKeptPromptIsNotLongerThanATable) {
    const auto engine = engine_of("llama2", 4, 8000);
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 1300; ++i) prompt.push_back((i * 7919 + 3) % engine->model().spec.vocab);
    GenerateOptions options;
    options.max_tokens = 20;
    options.ignore_end = true;
    options.stream = kStream;
    Scheduler scheduler(*engine);
    std::vector<Scheduler::Id> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(scheduler.add(prompt, options));
    while (scheduler.step()) engine->cache().check_books();
    for (const Scheduler::Id id : ids) EXPECT_EQ(scheduler.take(id)->ids.size(), 20u);
}

}  // namespace
}  // namespace mr::decode
