#include "decode/diffusion.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/splitmix.h"
#include "decode/diffusion_cases.h"
#include "decode/live_cases.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::decode {
namespace {

using test::DiffusionCase;

std::unique_ptr<model::Engine> engine_of(const DiffusionCase& of, int sequences = 1,
                                         std::int64_t pool = 0, int threads = 1) {
    static std::map<std::string, std::shared_ptr<const model::Model>> models;
    auto& model = models[of.name];
    if (!model) model = test::diffusion_model(of);
    model::EngineOptions options;
    options.threads = threads;
    options.context = 300;
    options.max_sequences = sequences;
    options.max_batch = 320;
    options.max_logits = 320;
    options.pool = pool;
    return model::make_engine(model, options);
}

GenerateOptions options_of(const ops::DenoiseParams& denoise, int tokens, std::uint64_t seed = 5) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.ignore_end = true;
    options.sampling.temperature = 0.9f;
    options.sampling.top_k = 20;
    options.sampling.seed = seed;
    options.diffusion.denoise = denoise;
    return options;
}

Generated generate(model::Engine& engine, const std::vector<std::int32_t>& prompt,
                   const GenerateOptions& options) {
    Scheduler scheduler(engine);
    const Scheduler::Id id = scheduler.add(prompt, options);
    while (scheduler.step()) {
    }
    return *scheduler.take(id);
}

class Diffusion : public testing::TestWithParam<DiffusionCase> {};
INSTANTIATE_TEST_SUITE_P(Models, Diffusion, testing::ValuesIn(test::kDiffusionCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Diffusion, EveryStrategyIsThatOfAPlainDecoder) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of), plain = engine_of(of);
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    int case_number = 0;
    for (const ops::DenoiseParams& denoise : test::denoise_cases(block)) {
        // Prompts that fill their last block, and that do not; texts that do, and that do not.
        const int prompts[] = {1, 2 * block, 2 * block + 3, 37}, tokens[] = {1, 2 * block, 45};
        const int prompt_tokens = prompts[case_number % 4];
        for (const int count : tokens) {
            const auto prompt = test::some_tokens(prompt_tokens, 3 + case_number, 95);
            const GenerateOptions options =
                options_of(denoise, count, static_cast<std::uint64_t>(case_number));
            SCOPED_TRACE(std::string(ops::remask_name(denoise.remask)) + ", steps " +
                         std::to_string(denoise.steps) + ", prompt " +
                         std::to_string(prompt_tokens) + ", tokens " + std::to_string(count));
            test::PlainDecoder decoder{*plain, options.diffusion, options.sampling};
            const Generated got = generate(*engine, prompt, options);
            EXPECT_EQ(got.ids, decoder(prompt, count));
            EXPECT_EQ(std::ssize(got.ids), count);
            // No mask token is ever a part of a text.
            EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), 95), 0);
        }
        ++case_number;
    }
}

TEST_P(Diffusion, AThresholdUsesFewerPassesThanTokens) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of);
    const auto prompt = test::some_tokens(20, 1, 95);
    const Generated all =
        generate(*engine, prompt, options_of({.remask = ops::Remask::dynamic, .threshold = 0}, 64));
    const Generated one =
        generate(*engine, prompt, options_of({.remask = ops::Remask::dynamic, .threshold = 1}, 64));
    EXPECT_LT(all.passes, one.passes / 2);
    EXPECT_GE(one.passes, 64);
}

TEST_P(Diffusion, CommittingWithTheNextBlockIsCommittingApart) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of);
    for (const int tokens : {7, 64, 100}) {
        const auto prompt = test::some_tokens(21, tokens, 95);
        GenerateOptions options =
            options_of({.remask = ops::Remask::dynamic, .threshold = 0.06f}, tokens);
        const Generated together = generate(*engine, prompt, options);
        options.diffusion.commit_apart = true;
        const Generated apart = generate(*engine, prompt, options);
        EXPECT_EQ(together.ids, apart.ids);
        if (of.block > 0 && 2 * of.block <= 64 && !of.shifted && tokens > 3 * of.block) {
            EXPECT_LT(together.passes, apart.passes);
        }
    }
}

TEST_P(Diffusion, AnotherBlockIsTheSameModelWithIt) {
    const DiffusionCase& of = GetParam();
    if (of.sub_block > 0) GTEST_SKIP() << "its blocks have parts";
    const auto engine = engine_of(of), plain = engine_of(of);
    for (const int block : {1, 5, 32}) {
        GenerateOptions options = options_of({.remask = ops::Remask::fixed}, 40);
        options.diffusion.block = block;
        const auto prompt = test::some_tokens(18, block, 95);
        test::PlainDecoder decoder{*plain, options.diffusion, options.sampling};
        EXPECT_EQ(generate(*engine, prompt, options).ids, decoder(prompt, 40)) << block;
    }
}

TEST_P(Diffusion, TextsHaveTheBitsTheyHaveAlone) {
    const DiffusionCase& of = GetParam();
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    const auto denoise = test::denoise_cases(block);
    struct Order {
        std::vector<std::int32_t> prompt;
        GenerateOptions options;
        int arrival = 0, cancelled = -1;
    };
    std::vector<Order> orders;
    std::uint64_t state = 7;
    const auto below = [&state](int n) {
        state = splitmix(state);
        return static_cast<int>(state % static_cast<std::uint64_t>(n));
    };
    constexpr int kOrders = 40;
    for (int i = 0; i < kOrders; ++i) {
        Order order;
        // Some begin alike, so that pages are shared and prompts are computed once.
        order.prompt = test::some_tokens(1 + below(90), below(4), 95);
        order.options =
            options_of(denoise[static_cast<std::size_t>(below(static_cast<int>(denoise.size())))],
                       1 + below(50), static_cast<std::uint64_t>(i));
        order.arrival = below(60);
        if (below(5) == 0) order.cancelled = below(30);
        orders.push_back(std::move(order));
    }
    const auto engine = engine_of(of, 6, 420, 2);
    Scheduler scheduler(*engine);
    std::vector<Scheduler::Id> ids(orders.size(), 0);
    std::vector<int> age(orders.size(), 0);
    bool busy = true;
    for (int step = 0; busy || step < 60; ++step) {
        for (std::size_t i = 0; i < orders.size(); ++i) {
            if (orders[i].arrival == step)
                ids[i] = scheduler.add(orders[i].prompt, orders[i].options);
            if (ids[i] != 0 && age[i]++ == orders[i].cancelled) scheduler.cancel(ids[i]);
        }
        busy = scheduler.step();
        engine->cache().check_books();
    }
    for (std::size_t i = 0; i < orders.size(); ++i) {
        SCOPED_TRACE(i);
        const std::optional<Generated> got = scheduler.take(ids[i]);
        ASSERT_TRUE(got);
        const auto alone = engine_of(of);
        std::vector<std::int32_t> want = generate(*alone, orders[i].prompt, orders[i].options).ids;
        if (got->reason == StopReason::cancelled) want.resize(got->ids.size());
        EXPECT_EQ(got->ids, want);
    }
    if (of.block > 0 && 32 % of.block == 0) {
        EXPECT_GT(scheduler.totals().found, 0);
    }
}

TEST(DiffusionText, ARejectedDrawIsNotRepeated) {
    // Draws of one place in one block, step by step: with temperature 1 they must not all be one.
    const auto engine = engine_of({"aligned16", 16, 0, false});
    const auto prompt = test::some_tokens(16, 2, 95);
    ops::SampleParams sampling;
    sampling.temperature = 1;
    sampling.top_k = 0;
    sampling.top_p = 1;
    sampling.min_p = 0;
    DiffusionOptions options;
    options.denoise.remask = ops::Remask::sequential;
    BlockText text(engine->model().spec, options, sampling, prompt, 16);
    const model::SeqId seq = engine->cache().open();
    const model::BatchItem first = model::prompt_item(seq, prompt, model::BatchItem::Logits::none);
    engine->submit({&first, 1});
    std::vector<std::int32_t> last;  // what was drawn for the last place
    std::vector<ops::Guess> guesses;
    while (!text.filled()) {
        const model::BatchItem item = text.next(engine->cache(), seq);
        const Tensor logits = engine->submit({&item, 1});
        guesses.resize(text.places().size());
        engine->guess(logits, text.places(), guesses);
        last.push_back(guesses.back().id);
        text.take(guesses);
    }
    EXPECT_EQ(last.size(), 16u);
    std::sort(last.begin(), last.end());
    EXPECT_GT(std::unique(last.begin(), last.end()) - last.begin(), 4);
}

TEST(DiffusionText, WhatAModelDoesNotTakeIsRefused) {
    struct Case {
        const char* field;
        std::function<void(GenerateOptions&)> spoil;
    };
    const std::vector<Case> cases = {
        {"--block", [](GenerateOptions& o) { o.diffusion.block = 65; }},
        {"--block", [](GenerateOptions& o) { o.diffusion.block = -1; }},
        {"--steps", [](GenerateOptions& o) { o.diffusion.denoise.steps = 5; }},
        {"--steps", [](GenerateOptions& o) { o.diffusion.denoise.steps = -1; }},
        {"--threshold", [](GenerateOptions& o) { o.diffusion.denoise.threshold = 1.5f; }},
        {"--threshold", [](GenerateOptions& o) { o.diffusion.denoise.threshold = -0.1f; }},
        {"--entropy-bound", [](GenerateOptions& o) { o.diffusion.denoise.entropy_bound = -1; }},
        {"--prefix-cache", [](GenerateOptions& o) { o.diffusion.prefix_cache = true; }},
        {"--repeat-penalty", [](GenerateOptions& o) { o.sampling.repeat_penalty = 1.1f; }},
        {"--logprobs", [](GenerateOptions& o) { o.logprobs = 0; }},
        {"--context",
         [](GenerateOptions& o) {
             o.stream = {4, 60};
         }},
    };
    const auto engine = engine_of({"aligned", 4, 0, false});
    for (const Case& test : cases) {
        GenerateOptions options = options_of({}, 8);
        test.spoil(options);
        Scheduler scheduler(*engine);
        try {
            scheduler.add({1, 2, 3}, options);
            ADD_FAILURE() << test.field << " was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.info().field, test.field) << error.what();
        }
    }
}

TEST(DiffusionText, APrefixCacheIsExactInTheFirstPassOfABlock) {
    for (const char* const name : {"full", "full_shifted"}) {
        const DiffusionCase of{name, 0, 0, std::string(name) == "full_shifted"};
        const auto engine = engine_of(of);
        GenerateOptions options = options_of({.remask = ops::Remask::fixed}, 24);
        options.diffusion.block = 8;
        options.diffusion.prefix_cache = true;
        const auto prompt = test::some_tokens(33, 4, 95);
        const Generated got = generate(*engine, prompt, options);
        EXPECT_EQ(std::ssize(got.ids), 24);
        EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), 95), 0);
        // With one pass a block every pass is the first of its block, which computes everything.
        GenerateOptions exact = options;
        exact.diffusion.prefix_cache = false;
        exact.diffusion.denoise.steps = options.diffusion.denoise.steps = 1;
        EXPECT_EQ(generate(*engine, prompt, options).ids, generate(*engine, prompt, exact).ids);
    }
}

}  // namespace
}  // namespace mr::decode
