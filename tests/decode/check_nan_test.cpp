// --check-nan during generation: the same text, or an error that names the place.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "decode/eval.h"
#include "decode/session.h"
#include "model/engine.h"
#include "plant.h"
#include "support.h"

namespace mr::decode::check_nan_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<std::int32_t> kPrompt{40, 41, 42, 43, 44, 45, 46, 47, 48};

std::unique_ptr<model::Engine> engine_of(model::Model model, bool check_nan) {
    model::EngineOptions options;
    options.threads = 2;
    options.context = 40;
    options.check_nan = check_nan;
    return model::make_engine(std::make_shared<const model::Model>(std::move(model)), options);
}

GenerateOptions greedy(int tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.sampling.temperature = 0;
    options.ignore_end = true;
    return options;
}

std::string error_of(Session& session, const std::vector<std::int32_t>& prompt,
                     const GenerateOptions& options) {
    try {
        session.generate(prompt, options);
    } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 1);
        return error.what();
    }
    return "no error";
}

TEST(CheckNan, HealthyModelsMakeTheSameTokens) {
    for (const char* family : {"llama2", "gpt2"}) {
        std::vector<std::int32_t> ids[2];
        for (const bool check : {false, true}) {
            const auto engine = engine_of(model::load_model(test::reference(family)), check);
            GenerateOptions options = greedy(20);
            options.sampling.temperature = 1;
            options.sampling.seed = 3;
            ids[check] = Session(*engine).generate(kPrompt, options).ids;
        }
        EXPECT_EQ(ids[0].size(), 20u);
        EXPECT_EQ(ids[1], ids[0]);
    }
}

// A damaged row of learned positions: tokens come up to it, then the error.
TEST(CheckNan, AStepThatFailsIsNamedAndLeavesTheSessionRight) {
    const std::string folder = test::reference("gpt2");
    const auto healthy = engine_of(model::load_model(folder), true);
    const std::vector<std::int32_t> want = Session(*healthy).generate(kPrompt, greedy(12)).ids;

    model::Model model = model::load_model(folder);
    const model::ModelSpec spec = model.spec;
    const std::int64_t element = std::int64_t{13} * spec.dim;
    ASSERT_EQ(model.weights.positions.dtype, DType::f32);
    const float whole = model.weights.positions.f32()[element];
    test::plant(model, {model::Role::positions}, element, kNan);
    float* const damaged = model.weights.positions.f32() + element;
    const std::string finding =
        folder + ": " + test::finding(spec, model::embedding_stage(), kNan, 13);
    const auto engine = engine_of(std::move(model), true);
    Session session(*engine);
    std::string shown;
    try {
        session.generate(kPrompt, greedy(12), [&](std::string_view text) {
            shown += text;
            return true;
        });
        FAIL() << "a NaN went through";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find(finding), 0u) << error.what();
    }
    engine->cache().check_books();
    const std::string five = Session(*healthy).generate(kPrompt, greedy(5)).text;
    EXPECT_EQ(five.find(shown), 0u);  // a partial character is held back
    EXPECT_FALSE(shown.empty());
    EXPECT_EQ(error_of(session, kPrompt, greedy(12)).find(finding), 0u);
    // Repaired, continue from the token that failed: it was not computed, and is not assumed to be.
    *damaged = whole;
    std::vector<std::int32_t> longer = kPrompt;
    longer.insert(longer.end(), want.begin(), want.begin() + 5);
    longer.push_back(40);
    const Generated after = session.generate(longer, greedy(8));
    EXPECT_LE(after.prefill.tokens, static_cast<std::int64_t>(longer.size()));
    EXPECT_EQ(after.ids, Session(*healthy).generate(longer, greedy(8)).ids);
}

TEST(CheckNan, WithoutItErrorsNameTheSwitch) {
    model::Model model = model::load_model(test::reference("llama2"));
    const model::ModelSpec spec = model.spec;
    test::plant(model, {model::Role::up, 1}, 5, kNan);
    model::Model same = model;
    const auto plain = engine_of(std::move(model), false);
    const auto checked = engine_of(std::move(same), true);
    {
        Session session(*plain);
        EXPECT_NE(error_of(session, kPrompt, greedy(4)).find("--check-nan"), std::string::npos);
    }
    const std::string place = test::finding(spec, model::mlp_stage(spec, 1), kNan, 0);
    for (const auto& [engine, says] :
         {std::pair{plain.get(), std::string("--check-nan")}, {checked.get(), place}}) {
        try {
            evaluate(*engine, "Once upon a time", {});
            FAIL() << "a NaN went through";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        }
    }
}

}  // namespace
}  // namespace mr::decode::check_nan_test
