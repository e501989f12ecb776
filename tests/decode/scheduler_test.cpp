#include "decode/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "decode/scheduler_cases.h"
#include "model/engine.h"
#include "model/model.h"
#include "sanitized.h"
#include "support.h"

namespace mr::decode {
namespace {

std::shared_ptr<const model::Model> small_model() {
    static const auto model =
        std::make_shared<const model::Model>(model::load_model(test::reference("llama2")));
    return model;
}

std::unique_ptr<model::Engine> engine_of(int sequences, std::int64_t pool = 0, int threads = 1,
                                         int logits = 0) {
    model::EngineOptions options;
    options.threads = threads;
    options.max_logits = logits;
    options.context = 160;
    options.max_sequences = sequences;
    options.max_batch = 96;
    options.pool = pool;
    return model::make_engine(small_model(), options);
}

// A fresh engine each time.
struct Fresh {
    std::unique_ptr<model::Engine> engine;
    model::Engine& operator()() {
        engine = engine_of(1, 0, 1, 30);
        return *engine;
    }
};

const int kRequests = test::sanitized() ? 40 : 1000, kFewRequests = test::sanitized() ? 12 : 60;

TEST(Scheduler, AThousandSequencesHaveTheBitsTheyHaveAlone) {
    const auto orders =
        test::random_orders(kRequests, 3, small_model()->spec.vocab, 120, 24, model::kCut);
    // A pool a third of what all sequences could need: requests wait, pages are evicted.
    const auto engine = engine_of(12, 640, 2);
    Scheduler::Totals totals;
    const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
    EXPECT_GT(totals.found, kRequests);  // for prompts with equal prefixes
    EXPECT_GT(totals.mixed, kRequests / 10);
    test::expect_as_alone(orders, got, Fresh{});
}

TEST(Scheduler, APoolThatIsFullMakesRequestsWait) {
    // Room for one and a half of them.
    const auto engine = engine_of(8, 160);
    Scheduler scheduler(*engine);
    std::vector<Scheduler::Id> ids;
    for (int i = 0; i < 6; ++i) {
        GenerateOptions options;
        options.max_tokens = 50;
        options.ignore_end = true;
        options.sampling.temperature = 0;
        ids.push_back(scheduler.add(std::vector<std::int32_t>(40, 5 + i), options));
    }
    std::size_t most = 0;
    while (scheduler.step()) {
        most = std::max(most, scheduler.running());
        engine->cache().check_books();
    }
    EXPECT_GE(most, 1u);
    EXPECT_LT(most, 6u);
    for (const Scheduler::Id id : ids) {
        const std::optional<Generated> made = scheduler.take(id);
        ASSERT_TRUE(made);
        EXPECT_EQ(made->ids.size(), 50u);
        EXPECT_EQ(made->reason, StopReason::length);
    }
}

// All slots are taken, so a request that has its pages cannot be admitted.
TEST(Scheduler, ARequestThatCannotBeAdmittedGivesItsPagesBack) {
    const auto engine = engine_of(2);
    const model::SeqId other = engine->cache().open();
    for (int i = 0; i < 2; ++i) engine->open_slot(other, {});
    {
        Scheduler scheduler(*engine);
        scheduler.add(std::vector<std::int32_t>(40, 5), {});
        EXPECT_THROW(scheduler.step(), ContractError);
    }
    EXPECT_NO_THROW(engine->cache().close(engine->cache().open()));  // one of two is free again
    engine->cache().check_books();
}

TEST(Scheduler, EqualPromptsAreComputedOnce) {
    const auto engine = engine_of(8);
    Scheduler scheduler(*engine);
    const std::vector<std::int32_t> prompt(100, 7);
    std::vector<Scheduler::Id> ids;
    for (std::uint64_t i = 0; i < 8; ++i) {
        GenerateOptions options;
        options.max_tokens = 10;
        options.ignore_end = true;
        options.sampling.seed = i;
        ids.push_back(scheduler.add(prompt, options));
    }
    while (scheduler.step()) engine->cache().check_books();
    EXPECT_EQ(scheduler.totals().prefill.tokens, 100);
    EXPECT_EQ(scheduler.totals().found, 700);
    std::vector<test::Order> orders(8);
    std::vector<Generated> got;
    for (std::size_t i = 0; i < 8; ++i) {
        got.push_back(*scheduler.take(ids[i]));
        EXPECT_EQ(got[i].found, i == 0 ? 0 : 100);
        orders[i].prompt = prompt;
        orders[i].options.max_tokens = 10;
        orders[i].options.ignore_end = true;
        orders[i].options.sampling.seed = i;
    }
    test::expect_as_alone(orders, got, Fresh{});
}

TEST(Scheduler, PromptsAreSharedUnderOneSaltAlone) {
    const auto engine = engine_of(8);
    Scheduler scheduler(*engine);
    std::vector<test::Order> orders(7);
    for (std::size_t i = 0; i < orders.size(); ++i) {
        orders[i].prompt.assign(100, 7);
        orders[i].options.max_tokens = 10;
        orders[i].options.ignore_end = true;
        orders[i].options.sampling.seed = i;
        orders[i].options.cache_salt = i % 2;
    }
    // Of requests that wait together, one per salt is computed; later ones find it in the cache,
    // unless their salt is new.
    const auto run = [&](std::size_t begin, std::size_t end) {
        std::vector<Scheduler::Id> ids;
        for (std::size_t i = begin; i < end; ++i) {
            ids.push_back(scheduler.add(orders[i].prompt, orders[i].options));
        }
        while (scheduler.step()) engine->cache().check_books();
        std::vector<Generated> got;
        for (const Scheduler::Id id : ids) got.push_back(*scheduler.take(id));
        test::expect_as_alone(std::span(orders).subspan(begin, end - begin), got, Fresh{});
        return got;
    };
    run(0, 4);
    EXPECT_EQ(scheduler.totals().prefill.tokens, 200);
    EXPECT_EQ(scheduler.totals().found, 200);
    orders[6].options.cache_salt = 2;
    const std::vector<Generated> later = run(4, 7);
    EXPECT_EQ(later[0].prefill.tokens, 1);
    EXPECT_EQ(later[1].prefill.tokens, 1);
    EXPECT_EQ(later[2].prefill.tokens, 100);
    EXPECT_EQ(later[0].found, 99);
    EXPECT_EQ(later[2].found, 0);
    // Nothing is found for a text that never runs.
    GenerateOptions none = orders[0].options;
    none.max_tokens = 0;
    EXPECT_EQ(scheduler.take(scheduler.add(orders[0].prompt, none))->found, 0);
}

TEST(Scheduler, AFollowerTakesOverWhenItsLeaderIsCancelled) {
    const auto engine = engine_of(3);
    std::vector<test::Order> orders(3);
    for (std::size_t i = 0; i < 3; ++i) {
        orders[i].prompt = std::vector<std::int32_t>(150, 9);  // two passes of 96
        orders[i].options.max_tokens = 5;
        orders[i].options.ignore_end = true;
        orders[i].options.sampling.seed = i;
    }
    orders[0].cancelled = 1;
    Scheduler::Totals totals;
    const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
    EXPECT_EQ(got[0].reason, StopReason::cancelled);
    EXPECT_TRUE(got[0].ids.empty());
    EXPECT_EQ(totals.prefill.tokens, 150);
    EXPECT_EQ(got[0].found, 0);
    EXPECT_EQ(got[1].found, 96);
    EXPECT_EQ(got[2].found, 150);
    EXPECT_EQ(totals.found, 246);
    test::expect_as_alone(std::span(orders).subspan(1), {got.begin() + 1, got.end()}, Fresh{});
}

// A row joins in the pass in which another leaves.
TEST(Scheduler, RowsJoinAndLeaveInEveryPass) {
    const auto engine = engine_of(2);
    std::vector<test::Order> orders(40);
    for (std::size_t i = 0; i < orders.size(); ++i) {
        orders[i].prompt = std::vector<std::int32_t>(3 + i % 5, static_cast<std::int32_t>(i + 3));
        orders[i].options.max_tokens = 1 + static_cast<int>(i % 3);
        orders[i].options.ignore_end = true;
        orders[i].options.sampling.seed = i;
    }
    const std::vector<Generated> got = test::run_orders(*engine, orders);
    test::expect_as_alone(orders, got, Fresh{});
}

TEST(Scheduler, LogprobsAreOfTheDrawsAndChangeNoBits) {
    const auto orders =
        test::random_orders(kFewRequests, 8, small_model()->spec.vocab, 120, 24, model::kCut);
    test::expect_logprobs(*engine_of(6, 640, 2), orders, Fresh{});
}

TEST(Scheduler, AdjustedTextsHaveTheBitsTheyHaveAlone) {
    auto orders =
        test::random_orders(kFewRequests, 9, small_model()->spec.vocab, 120, 24, model::kCut);
    test::expect_adjusted(*engine_of(6, 640, 2), std::move(orders), Fresh{});
}

TEST(Scheduler, PromptsAreScoredBesideTexts) {
    auto orders =
        test::random_orders(kFewRequests, 10, small_model()->spec.vocab, 120, 24, model::kCut);
    const auto plain = engine_of(1, 0, 1, model::kCut);
    // One row of logits more than texts, or more than a piece needs.
    for (const int logits : {7, 200}) {
        test::expect_prompts_scored(*engine_of(6, 640, 2, logits), orders, Fresh{}, *plain);
    }
}

TEST(Scheduler, APromptThatFillsTheContextCanBeScored) {
    const auto engine = engine_of(1, 0, 1, 2);
    Scheduler scheduler(*engine);
    std::vector<PromptToken> scored;
    GenerateOptions options;
    options.max_tokens = 0;
    const std::vector<std::int32_t> prompt(160, 3);
    EXPECT_THROW(scheduler.add(prompt, options), Error);
    options.prompt_logprobs = 0;
    options.on_prompt = [&](std::vector<PromptToken> list) { scored = std::move(list); };
    const Scheduler::Id id = scheduler.add(prompt, options);
    while (scheduler.step()) {
    }
    EXPECT_EQ(scored.size(), 160U);
    const std::optional<Generated> made = scheduler.take(id);
    EXPECT_EQ(made->drawn, 0);
    EXPECT_EQ(made->reason, StopReason::length);
    EXPECT_EQ(made->prefill.tokens, 160);
    EXPECT_THROW(scheduler.add(std::vector<std::int32_t>(161, 3), options), Error);
    options.max_tokens = 1;
    EXPECT_THROW(scheduler.add(prompt, options), Error);
}

// A prompt that is not shared is computed again, and leaves nothing in the cache.
TEST(Scheduler, APromptMayStayOutOfTheCache) {
    const auto engine = engine_of(2);
    GenerateOptions plain, apart;
    plain.max_tokens = apart.max_tokens = 4;
    apart.share_prompt = false;
    const std::vector<std::int32_t> prompt(100, 5);
    const auto found = [&](const GenerateOptions& first, const GenerateOptions& second) {
        engine->cache().forget_all();
        std::vector<test::Order> orders = {{.prompt = prompt, .options = first},
                                           {.prompt = prompt, .options = second, .arrives = 50}};
        const std::vector<Generated> made = test::run_orders(*engine, orders);
        EXPECT_EQ(made[0].ids, made[1].ids);
        EXPECT_EQ(made[0].found, 0);
        return made[1].found;
    };
    EXPECT_EQ(found(plain, plain), 99);
    EXPECT_EQ(found(plain, apart), 0);
    EXPECT_EQ(found(apart, plain), 0);
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
    const auto engine = engine_of(1);
    Scheduler scheduler(*engine);
    EXPECT_THROW(scheduler.add({}, {}), Error);
    EXPECT_THROW(scheduler.add(std::vector<std::int32_t>(160, 3), {}), Error);
    GenerateOptions hot;
    hot.sampling.temperature = -1;
    EXPECT_THROW(scheduler.add({1, 2}, hot), Error);
    GenerateOptions biased;
    biased.adjust.bias = {{small_model()->spec.vocab, 1.0f}};
    EXPECT_THROW(scheduler.add({1, 2}, biased), Error);
    GenerateOptions stops;
    stops.stop_ids = {3, small_model()->spec.vocab};
    EXPECT_THROW(scheduler.add({1, 2}, stops), Error);
    EXPECT_FALSE(scheduler.step());
}

TEST(Scheduler, ARequestEndsWhereTheContextDoes) {
    const auto engine = engine_of(1);
    Scheduler scheduler(*engine);
    GenerateOptions options;
    options.max_tokens = 1000;
    options.ignore_end = true;
    const Scheduler::Id id = scheduler.add(std::vector<std::int32_t>(150, 3), options);
    while (scheduler.step()) {
    }
    const std::optional<Generated> made = scheduler.take(id);
    EXPECT_EQ(made->reason, StopReason::context_full);
    EXPECT_EQ(made->ids.size(), 11u);  // ten are fed back, at 150 to 159
}

}  // namespace
}  // namespace mr::decode
