// Texts without an end: streaming requests beside others, in rings of pages.
#include <gtest/gtest.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "decode/scheduler.h"
#include "decode/scheduler_cases.h"
#include "model/engine.h"
#include "model/model.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "support.h"

namespace mr::decode::stream_test {
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

// Every text has the same bits as alone, streaming or not, whatever runs beside it.
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

// A text continues past every context in the same pages.
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

// Bytes that the program has allocated; 0: unknown on this system.
std::size_t allocated() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}
bool allocations_are_known() {
    const std::size_t before = allocated();
    const std::vector<char> some(1 << 20);
    return allocated() >= before + some.size();
}

GenerateOptions endless() {
    GenerateOptions options;
    options.max_tokens = std::numeric_limits<int>::max() - 1;
    options.ignore_end = true;
    options.stream = kStream;
    options.keep = Keep::nothing;
    options.sampling.repeat_penalty = 1.1f;
    options.repeat_window = model::Generation::kWholeText;
    options.stop = {"what it never says"};
    return options;
}

// Nothing on the host grows with an answer that is not kept: no ids, no text, no penalty list, no
// roofline steps.
TEST(Streams, AnAnswerThatIsNotKeptTakesNoMemory) {
    if (!allocations_are_known()) GTEST_SKIP() << "allocations are not counted here";
    const auto engine = engine_of("llama2", 2);
    observe::RooflineSums sums("decode");
    observe::Recorder recorder([&](const observe::Step& step) { sums.add(step); });
    Scheduler scheduler(*engine, &recorder);
    std::int64_t bytes = 0;
    const auto count = [&](std::string_view text) {
        bytes += static_cast<std::int64_t>(text.size());
        return true;
    };
    GenerateOptions options = endless();
    const Scheduler::Id first = scheduler.add({1, 5, 9}, options, count);
    options.sampling.seed = 1;
    const Scheduler::Id second = scheduler.add({1, 5, 9}, options, count);
    for (int i = 0; i < 500; ++i) scheduler.step();
    const std::size_t before = allocated();
    for (int i = 0; i < 6000; ++i) scheduler.step();
    EXPECT_LE(allocated(), before + 256);
    EXPECT_GT(bytes, 10000);
    EXPECT_GT(sums.under({}).steps, 6000);
    for (const Scheduler::Id id : {first, second}) scheduler.cancel(id);
    EXPECT_FALSE(scheduler.step());
    for (const Scheduler::Id id : {first, second}) {
        const Generated made = *scheduler.take(id);
        EXPECT_GT(made.drawn, 6000);
        EXPECT_EQ(made.evicted, 3 + made.drawn - 1 - 48);
        EXPECT_TRUE(made.ids.empty() && made.confidence.empty() && made.text.empty());
    }
}

// What is kept changes nothing else: neither the text, nor its part in the cache afterwards.
TEST(Streams, WhatIsKeptOfAnAnswerDoesNotChangeIt) {
    struct Case {
        model::Stream stream;
        int tokens;
        bool found;  // false for a stream whose first tokens have left
    };
    for (const Case& c :
         {Case{kStream, 200, false}, Case{kStream, 40, true}, Case{{}, 200, true}}) {
        SCOPED_TRACE(c.tokens);
        std::vector<Generated> made;
        std::vector<std::string> said;
        std::vector<std::int64_t> found;
        for (const Keep keep : {Keep::all, Keep::words, Keep::nothing}) {
            const auto engine = engine_of("llama2", 1);
            GenerateOptions options = endless();
            options.max_tokens = c.tokens;
            options.stream = c.stream;
            options.keep = keep;
            said.emplace_back();
            Scheduler scheduler(*engine);
            const Scheduler::Id id = scheduler.add({1, 5, 9}, options, [&](std::string_view text) {
                said.back() += text;
                return true;
            });
            while (scheduler.step()) {
            }
            made.push_back(*scheduler.take(id));
            // A prompt with the beginning of the text.
            std::vector<std::int32_t> again{1, 5, 9};
            again.insert(again.end(), made[0].ids.begin(), made[0].ids.end());
            scheduler.add(again, options);
            while (scheduler.step()) {
            }
            found.push_back(scheduler.totals().found);
            engine->cache().check_books();
        }
        EXPECT_EQ(made[0].confidence.size(), static_cast<std::size_t>(c.tokens));
        EXPECT_EQ(made[1].ids, made[0].ids);
        EXPECT_EQ(made[1].text, made[0].text);
        EXPECT_TRUE(made[1].confidence.empty());
        EXPECT_TRUE(made[2].ids.empty() && made[2].text.empty() && made[2].confidence.empty());
        for (std::size_t i = 0; i < made.size(); ++i) {
            EXPECT_EQ(made[i].drawn, c.tokens);
            EXPECT_EQ(said[i], made[0].text);
            EXPECT_EQ(found[i], found[0]);
        }
        EXPECT_EQ(found[0] > 0, c.found);
    }
}

// The penalty looks back over the visible text, or 64 tokens.
TEST(Streams, APenaltyOnTheWholeTextIsOneOnWhatIsSeen) {
    const auto ids = [](int window) {
        const auto engine = engine_of("llama2", 1);
        GenerateOptions options = endless();
        options.max_tokens = 400;
        options.keep = Keep::words;
        options.repeat_window = window;
        Scheduler scheduler(*engine);
        const Scheduler::Id id = scheduler.add({1, 5, 9}, options);
        while (scheduler.step()) {
        }
        return scheduler.take(id)->ids;
    };
    EXPECT_EQ(model::most_recent({4, 252}), 256);
    EXPECT_EQ(model::most_recent(kStream), 64);
    EXPECT_EQ(ids(model::Generation::kWholeText), ids(64));
    EXPECT_NE(ids(model::Generation::kWholeText), ids(20));
}

// A prompt of any length goes through a window shorter than a piece of it.
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

// ... and several of them, with room to keep the prompt but a table too small for it.
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

// Texts with a common long prompt compute it once and run together, in pages for one window each
// and for the prompt once.
TEST(Streams, ALongPromptIsSharedInAPoolOfWindows) {
    auto model = std::make_shared<model::Model>(model::load_model(test::reference("llama2")));
    model->spec.context = 8192;
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 500; ++i) prompt.push_back((i * 7919 + 3) % model->spec.vocab);
    const auto run = [&](std::int64_t shared, int sequences, std::int64_t context) {
        model::EngineOptions wanted;
        wanted.threads = 1;
        wanted.max_batch = 64;
        wanted.max_sequences = sequences;
        wanted.stream = kStream;
        wanted.shared = shared;
        wanted.context = context;
        const auto engine = model::make_engine(model, wanted);
        if (context == 0) {
            EXPECT_EQ(engine->options().pool, sequences * (5 + 1) * 32 + shared);
        }
        GenerateOptions options = endless();
        options.max_tokens = 100;
        options.keep = Keep::all;
        Scheduler scheduler(*engine);
        std::vector<Scheduler::Id> ids;
        for (int i = 0; i < 3; ++i) {
            options.sampling.seed = static_cast<std::uint64_t>(i);
            ids.push_back(scheduler.add(prompt, options));
        }
        std::size_t together = 0;
        while (scheduler.step()) {
            engine->cache().check_books();
            together = std::max(together, scheduler.running());
        }
        std::vector<std::vector<std::int32_t>> made;
        for (const Scheduler::Id id : ids) made.push_back(scheduler.take(id)->ids);
        return std::tuple(made, together, scheduler.totals().found);
    };
    const auto [want, alone, none] = run(0, 1, 0);
    EXPECT_EQ(alone, 1u);
    const auto [made, together, found] = run(500, 3, 0);
    EXPECT_EQ(made, want);
    EXPECT_EQ(together, 3u);
    EXPECT_EQ(found, 2 * 500);
    // Without room for the prompt each computes it, in its window.
    const auto [apart, still, nothing] = run(0, 3, 0);
    EXPECT_EQ(apart, want);
    EXPECT_EQ(still, 3u);
    EXPECT_EQ(nothing, 0);
    // As on an engine that also takes whole texts.
    EXPECT_EQ(std::get<0>(run(0, 3, 8192)), want);
}

}  // namespace
}  // namespace mr::decode::stream_test
