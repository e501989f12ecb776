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
#include "decode/diffusion_endings.h"
#include "decode/live_cases.h"
#include "decode/open_sequence.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::decode::diffusion_test {
namespace {

using test::DiffusionCase;

std::unique_ptr<model::Engine> engine_of(const DiffusionCase& of, int sequences = 1,
                                         std::int64_t pool = 0, int threads = 1, int block = 0) {
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
    options.block = block;
    return model::make_engine(model, options);
}

class Diffusion : public testing::TestWithParam<DiffusionCase> {};
INSTANTIATE_TEST_SUITE_P(Models, Diffusion, testing::ValuesIn(test::kDiffusionCases),
                         [](const auto& info) { return info.param.name; });
class DiffusionTogether : public Diffusion {};
INSTANTIATE_TEST_SUITE_P(Models, DiffusionTogether, testing::ValuesIn(test::together_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Diffusion, EveryStrategyIsThatOfAPlainDecoder) {
    const auto make = [this](int sequences, std::int64_t pool) {
        return engine_of(GetParam(), sequences, pool, sequences > 1 ? 2 : 1);
    };
    test::every_strategy_is_that_of_a_plain_decoder(GetParam(), make, 300);
}

// For texts that arrive together all prompts are computed before a block: no pass has both. A later
// text shares passes with blocks.
TEST_P(DiffusionTogether, PromptsOfABurstComeBeforeBlocks) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of, 8, 0);
    Scheduler scheduler(*engine);
    std::vector<Scheduler::Id> ids;
    const auto prompt = [](int i) { return test::some_tokens(100 + i, 5 + i, 95); };
    const auto options = [&](int i) {
        return test::filling({}, 2 * of.block, static_cast<std::uint64_t>(i));
    };
    for (int i = 0; i < 7; ++i) ids.push_back(scheduler.add(prompt(i), options(i)));
    for (int step = 0; step < 4; ++step) scheduler.step();  // 721 tokens, 320 in a pass
    EXPECT_EQ(scheduler.totals().mixed, 0);
    EXPECT_GT(scheduler.totals().decode.seconds, 0);
    ids.push_back(scheduler.add(prompt(7), options(7)));
    while (scheduler.step()) {
    }
    EXPECT_GT(scheduler.totals().mixed, 0);
    for (int i = 0; i < 8; ++i) {
        const std::optional<Generated> got = scheduler.take(ids[static_cast<std::size_t>(i)]);
        ASSERT_TRUE(got);
        EXPECT_EQ(got->ids, test::filled(*engine_of(of), prompt(i), options(i)).ids);
    }
}

TEST_P(Diffusion, AThresholdUsesFewerPassesThanTokens) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of);
    const auto prompt = test::some_tokens(20, 1, 95);
    const Generated all = test::filled(
        *engine, prompt, test::filling({.remask = ops::Remask::dynamic, .threshold = 0}, 64));
    const Generated one = test::filled(
        *engine, prompt, test::filling({.remask = ops::Remask::dynamic, .threshold = 1}, 64));
    EXPECT_LT(all.passes, one.passes / 2);
    EXPECT_GE(one.passes, 64);
}

TEST_P(DiffusionTogether, CommittingWithTheNextBlockIsCommittingApart) {
    const auto make = [this](int sequences, std::int64_t pool) {
        return engine_of(GetParam(), sequences, pool, sequences > 1 ? 2 : 1);
    };
    test::committing_with_the_next_block_is_committing_apart(GetParam(), make);
}

TEST_P(Diffusion, AnotherBlockIsTheSameModelWithIt) {
    const DiffusionCase& of = GetParam();
    if (of.sub_block > 0) {  // its blocks have parts, whose size is fixed
        DiffusionOptions other;
        other.block = 2 * of.block;
        EXPECT_THROW(other.check(test::diffusion_spec(of)), Error);
        return;
    }
    const auto plain = engine_of(of);
    for (const int block : {1, 5, 32}) {
        const auto engine = engine_of(of, 1, 0, 1, block);
        GenerateOptions options = test::filling({.remask = ops::Remask::fixed}, 40);
        options.diffusion.block = block;
        const auto prompt = test::some_tokens(18, block, 95);
        test::PlainDecoder decoder{*plain, options.diffusion, options.sampling};
        EXPECT_EQ(test::filled(*engine, prompt, options).ids, decoder(prompt, 40)) << block;
    }
}

TEST_P(Diffusion, TextsHaveTheBitsTheyHaveAlone) {
    const auto make = [this](int sequences, std::int64_t pool) {
        return engine_of(GetParam(), sequences, pool, sequences > 1 ? 2 : 1);
    };
    test::texts_have_the_bits_they_have_alone(GetParam(), make);
}

TEST_P(Diffusion, GuessesOnTheHostAreTheEngines) {
    test::guesses_on_the_host_are_the_engines(GetParam(), [this](int sequences, std::int64_t pool) {
        return engine_of(GetParam(), sequences, pool, sequences > 1 ? 2 : 1);
    });
}

TEST_P(Diffusion, ARowThatIsNotFiniteEndsItsTextAlone) {
    const std::string error = test::a_row_that_is_not_finite_ends_its_text_alone(
        GetParam(), DType::f32, test::engines_on_cpu);
    EXPECT_NE(error.find("--check-nan"), std::string::npos) << error;
}

TEST_P(Diffusion, ATextThatEndsInsideOfABlockLeavesNothingBehind) {
    test::a_text_that_ends_inside_of_a_block_leaves_nothing_behind(GetParam(), DType::f32,
                                                                   test::engines_on_cpu);
}

TEST_P(Diffusion, TextsComeAndGoBesideOne) {
    for (const auto& [sequences, prefix_cache] :
         {std::pair{1, false}, {2, false}, {1, true}, {2, true}}) {
        if (prefix_cache && GetParam().block > 0) continue;
        SCOPED_TRACE(std::to_string(sequences) + (prefix_cache ? ", prefix cache" : ""));
        test::texts_come_and_go_beside_one(GetParam(), *engine_of(GetParam(), sequences),
                                           *engine_of(GetParam()), prefix_cache);
    }
}

TEST(DiffusionText, TheSamePromptWithTwoBlocksIsTwoTexts) {
    const DiffusionCase of{"aligned", 4, 0, false};
    const auto engine = engine_of(of, 2, 0, 1, 8);
    const auto prompt = test::some_tokens(100, 1, 95);
    for (const int block : {8, 4, 8, 4}) {  // cached pages of one are not used by the other
        GenerateOptions options = test::filling({.remask = ops::Remask::fixed}, 20);
        options.diffusion.block = block;
        const auto alone = engine_of(of, 1, 0, 1, block);
        EXPECT_EQ(test::filled(*engine, prompt, options).ids,
                  test::filled(*alone, prompt, options).ids)
            << block;
    }
    GenerateOptions larger = test::filling({}, 20);
    larger.diffusion.block = 16;
    Scheduler scheduler(*engine);
    EXPECT_THROW(scheduler.add(prompt, larger), Error);
}

// The end of the prompt is a part of the first block: it is neither computed before nor found.
TEST(DiffusionText, TheUnfinishedBlockIsNotFoundInTheCache) {
    const auto engine = engine_of({"aligned", 4, 0, false});
    const auto prompt = test::some_tokens(102, 1, 95);
    const GenerateOptions options = test::filling({.remask = ops::Remask::fixed}, 10);
    const Generated first = test::filled(*engine, prompt, options);
    EXPECT_EQ(first.prefill.tokens, 100);
    EXPECT_EQ(first.found, 0);
    const Generated second = test::filled(*engine, prompt, options);
    EXPECT_GT(second.found, 0);
    EXPECT_EQ(second.found + second.prefill.tokens, 100);
}

TEST(DiffusionText, APromptThatCanBeCancelledIsCutWhereABlockEnds) {
    // Its first pieces are small, and a block may be longer.
    const DiffusionCase of{"aligned", 4, 0, false};
    for (const int block : {5, 40, 64}) {
        const auto engine = engine_of(of, 1, 0, 1, block);
        GenerateOptions options = test::filling({.remask = ops::Remask::fixed}, 10);
        options.diffusion.block = block;
        const auto prompt = test::some_tokens(250, 3, 95);
        const std::vector<std::int32_t> want = test::filled(*engine, prompt, options).ids;
        const auto again = engine_of(of, 1, 0, 1, block);
        options.cancelled = [] { return false; };
        EXPECT_EQ(test::filled(*again, prompt, options).ids, want) << block;
    }
}

TEST(DiffusionText, ARejectedDrawIsNotRepeated) {
    // Draws for one place in one block, step by step: at temperature 1 they must not all be equal.
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
    std::vector<std::int32_t> last;  // draws for the last place
    std::vector<ops::Guess> guesses;
    while (!text.filled()) {
        const model::BatchItem item = text.next(engine->cache(), seq);
        guesses.resize(text.places().size());
        engine->submit({&item, 1}, text.places(), guesses);
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
        GenerateOptions options = test::filling({}, 8);
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
        GenerateOptions options = test::filling({.remask = ops::Remask::fixed}, 24);
        options.diffusion.block = 8;
        options.diffusion.prefix_cache = true;
        const auto prompt = test::some_tokens(33, 4, 95);
        const Generated got = test::filled(*engine, prompt, options);
        EXPECT_EQ(std::ssize(got.ids), 24);
        EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), 95), 0);
        // With one pass per block every pass is the first of its block, which computes everything.
        GenerateOptions exact = options;
        exact.diffusion.prefix_cache = false;
        exact.diffusion.denoise.steps = options.diffusion.denoise.steps = 1;
        EXPECT_EQ(test::filled(*engine, prompt, options).ids,
                  test::filled(*engine, prompt, exact).ids);
    }
}

// The open block for an engine that fills in blocks by itself equals the next pass of the host: at
// the start of a block, inside it, and after a filled one.
TEST(DiffusionText, AnOpenBlockOfFullAttentionIsTheWholeText) {
    const ops::SampleParams sampling{.temperature = 1, .seed = 3};
    for (const bool shifted : {false, true}) {
        for (const bool prefix_cache : {false, true}) {
            SCOPED_TRACE(std::string(shifted ? "shifted" : "aligned") +
                         (prefix_cache ? ", prefix cache" : ""));
            const auto engine = engine_of({shifted ? "full_shifted" : "full", 0, 0, shifted});
            const OpenSequence open(engine->cache());
            DiffusionOptions options;
            options.block = 8;
            options.prefix_cache = prefix_cache;
            options.denoise.remask = ops::Remask::fixed;
            const auto prompt = test::some_tokens(11, 4, 95);
            BlockText text(engine->model().spec, options, sampling, prompt, 21);
            std::vector<std::int32_t> so_far = prompt;
            so_far.resize(32, 95);
            std::int64_t begin = 11;
            for (const int places : {8, 8, 5}) {
                const auto at_start = text.open(engine->cache(), open.id());
                ASSERT_TRUE(at_start);
                EXPECT_EQ(at_start->start, begin);
                EXPECT_EQ(at_start->pass, 0);
                EXPECT_EQ(std::vector(at_start->text.begin(), at_start->text.end()), so_far);
                // One pass of the host in between.
                const model::BatchItem item = text.next(engine->cache(), open.id());
                EXPECT_EQ(item.tokens.size(), 32u);
                std::vector<ops::Guess> guesses(text.places().size());
                engine->submit({&item, 1}, text.places(), guesses);
                text.take(guesses);
                for (std::size_t i = 0; i < text.block().size(); ++i) {
                    so_far[static_cast<std::size_t>(begin) + i] = text.block()[i];
                }

                const auto inside = text.open(engine->cache(), open.id());
                ASSERT_TRUE(inside);
                EXPECT_EQ(inside->pass, 1);
                EXPECT_EQ(inside->start, begin);
                EXPECT_EQ(inside->size, 32);
                EXPECT_EQ(inside->block, 8);
                EXPECT_EQ(inside->part, 8);
                EXPECT_EQ(std::ssize(inside->ids), places);
                EXPECT_EQ(inside->known.size(), inside->ids.size());
                EXPECT_EQ(std::count(inside->known.begin(), inside->known.end(), 1), 1);
                EXPECT_TRUE(inside->before.empty());
                EXPECT_FALSE(inside->mask);
                EXPECT_EQ(inside->keeps, prefix_cache);
                EXPECT_EQ(std::vector(inside->text.begin(), inside->text.end()), so_far);
                EXPECT_EQ(inside->text.data() + begin, inside->ids.data());
                // The kept part ends where the next pass begins.
                const std::int64_t kept = prefix_cache ? begin - (shifted ? 1 : 0) : 0;
                EXPECT_EQ(engine->cache().length(open.id()), kept);
                EXPECT_EQ(std::ssize(text.next(engine->cache(), open.id()).tokens), 32 - kept);

                const std::vector<std::int32_t> filled(static_cast<std::size_t>(places), 7);
                text.take({filled, 3});
                std::fill_n(so_far.begin() + begin, places, 7);
                EXPECT_TRUE(text.filled());
                EXPECT_EQ(text.open_next(), places == 8);
                begin += places;
            }
            EXPECT_EQ(text.passes(), 3 * (1 + 3));
            BlockText judged(engine->model().spec, options, sampling, prompt, 21);
            judged.judge(so_far);
            EXPECT_FALSE(judged.open(engine->cache(), open.id()));
        }
    }
}

}  // namespace
}  // namespace mr::decode::diffusion_test
