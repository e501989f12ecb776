// --check-nan on the CPU: damage in any tensor of any family is traced to its layer and position.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "families.h"
#include "model/engine.h"
#include "model_files.h"
#include "plant.h"

namespace mr::model {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::unique_ptr<Engine> engine_of(Model model, bool check_nan, int sequences = 1) {
    EngineOptions options;
    options.threads = 2;
    options.max_batch = 8;
    options.max_sequences = sequences;
    options.context = 32 * sequences;
    options.check_nan = check_nan;
    return make_engine(std::make_shared<const Model>(std::move(model)), options);
}

std::vector<std::int32_t> prompt_of(const ModelSpec& spec) {
    std::vector<std::int32_t> ids(20);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>((i * 37 + 11) % static_cast<std::size_t>(spec.vocab));
    }
    return ids;
}

// Feeds the prompt in chunks of 8; returns the logits of the last token.
std::vector<float> last_logits(Engine& engine, const std::vector<std::int32_t>& ids) {
    const SeqId seq = engine.cache().open();
    Tensor logits;
    for (std::size_t i = 0; i < ids.size(); i += 8) {
        const std::size_t count = std::min<std::size_t>(8, ids.size() - i);
        const BatchItem item{
            seq,
            {ids.data() + i, count},
            i + count == ids.size() ? BatchItem::Logits::last : BatchItem::Logits::none};
        logits = engine.submit({&item, 1});
    }
    engine.cache().close(seq);
    return {logits.f32(), logits.f32() + logits.shape.count()};
}

class CheckNan : public testing::TestWithParam<const char*> {};

TEST_P(CheckNan, EveryTensorIsTracedToItsStage) {
    const ModelSpec spec = load_model(reference(GetParam())).spec;
    const std::vector<std::int32_t> ids = prompt_of(spec);
    const auto last = static_cast<std::int64_t>(ids.size()) - 1;
    ASSERT_EQ(std::count(ids.begin(), ids.end(), ids[5]), 1);
    int planted = 0;
    for (const RoleAt at : roles_of(spec)) {
        const Shape shape = role_shape(spec, at.role);
        for (const float value : {kNan, kInfinity}) {
            // An infinity may become a NaN on its way, or mask a key without a trace: it must be
            // found, as an infinity, only where it is added directly to a checked value.
            const bool added = at.role == Role::o_bias || at.role == Role::down_bias ||
                               at.role == Role::embedding || at.role == Role::positions;
            if (!std::isnan(value) && !added) continue;
            std::int64_t element = shape.count() / 2, position = 0;
            if (at.role == Role::embedding) {
                element = std::int64_t{ids[5]} * spec.dim + 3;
                position = 5;
            } else if (at.role == Role::positions) {
                element = std::int64_t{13} * spec.dim;  // in the second chunk
                position = 13;
            } else if (at.role == Role::head || at.role == Role::final_norm ||
                       at.role == Role::final_norm_bias) {
                position = last;
            }
            SCOPED_TRACE("role " + std::to_string(static_cast<int>(at.role)) + " layer " +
                         std::to_string(at.layer) + " " + std::to_string(value));
            Model model = load_model(reference(GetParam()));
            test::plant(model, at, element, value);
            const auto engine = engine_of(std::move(model), true);
            const std::string error = error_of([&] { last_logits(*engine, ids); });
            const int stage = test::stage_of(spec, at);
            EXPECT_EQ(error.find(reference(GetParam()) + ": " +
                                 test::finding(spec, stage, value, position)),
                      0u)
                << error;
            ++planted;
        }
    }
    EXPECT_GT(planted, 9 * spec.layers);
}

TEST_P(CheckNan, AHealthyModelHasTheSameBits) {
    const ModelSpec spec = load_model(reference(GetParam())).spec;
    const std::vector<std::int32_t> ids = prompt_of(spec);
    const auto plain = engine_of(load_model(reference(GetParam())), false);
    const auto checked = engine_of(load_model(reference(GetParam())), true);
    EXPECT_EQ(last_logits(*checked, ids), last_logits(*plain, ids));
    EXPECT_EQ(plain->ledger().op(OpKind::check).calls, 0u);  // off: nothing is checked
    // Three passes: the embedding and two halves of every layer; logits once.
    EXPECT_EQ(checked->ledger().op(OpKind::check).calls,
              3u * (1 + 2 * static_cast<unsigned>(spec.layers)) + 1);
}

INSTANTIATE_TEST_SUITE_P(Families, CheckNan, testing::ValuesIn(test::kFamilies), test::family_name);

TEST(CheckNanMessage, TheRowsOfABatchHavePositionsOfTheirOwn) {
    Model model = load_model(reference("llama3"));
    const ModelSpec spec = model.spec;
    const std::vector<std::int32_t> ids = prompt_of(spec);
    test::plant(model, {Role::embedding}, std::int64_t{ids[9]} * spec.dim, kNan);
    const auto engine = engine_of(std::move(model), true, 3);
    const SeqId a = engine->cache().open(), b = engine->cache().open(), c = engine->cache().open();
    const std::span<const std::int32_t> all(ids);
    const BatchItem first[] = {{a, all.subspan(0, 3), BatchItem::Logits::last},
                               {b, all.subspan(4, 4), BatchItem::Logits::none}};
    engine->submit(first);
    const BatchItem second[] = {{a, all.subspan(3, 3), BatchItem::Logits::last},
                                {b, all.subspan(8, 3), BatchItem::Logits::last},
                                {c, all.subspan(9, 1), BatchItem::Logits::last}};
    const std::string error = error_of([&] { engine->submit(second); });
    EXPECT_NE(error.find(test::finding(spec, embedding_stage(), kNan, 5)), std::string::npos)
        << error;
}

TEST(CheckNanMessage, LogitsOfABatchHaveThePositionsOfTheirTokens) {
    // Tied: a token's row of the table gives its logit. This one is not read as input.
    Model model = load_model(reference("llama2"));
    const ModelSpec spec = model.spec;
    ASSERT_TRUE(spec.tied_embeddings);
    const std::vector<std::int32_t> ids = prompt_of(spec);
    std::int32_t unused = 0;
    while (std::count(ids.begin(), ids.end(), unused) > 0) ++unused;
    test::plant(model, {Role::embedding}, std::int64_t{unused} * spec.dim, -kInfinity);
    const auto engine = engine_of(std::move(model), true, 2);
    const SeqId a = engine->cache().open(), b = engine->cache().open();
    const std::span<const std::int32_t> all(ids);
    const BatchItem batch[] = {{a, all.subspan(0, 3), BatchItem::Logits::none},
                               {b, all.subspan(4, 4), BatchItem::Logits::last}};
    const std::string error = error_of([&] { engine->submit(batch); });
    EXPECT_NE(error.find(test::finding(spec, logits_stage(spec), kInfinity, 3)), std::string::npos)
        << error;
}

TEST(CheckNanMessage, SpeaksOfF16WhereNumbersPassThroughIt) {
    for (const DType kv : {DType::f32, DType::f16}) {
        Model model = load_model(reference("llama2"));
        const ModelSpec spec = model.spec;
        test::plant(model, {Role::o, 1}, 0, kNan);
        EngineOptions options;
        options.context = 32;
        options.kv_type = kv;
        options.check_nan = true;
        const std::unique_ptr<Engine> opened =
            make_engine(std::make_shared<const Model>(std::move(model)), options);
        Engine& engine = *opened;
        try {
            last_logits(engine, {1});
            FAIL() << "a NaN went through";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            EXPECT_EQ(error.info().field, "layer 1, after attention (out)");
            EXPECT_EQ(error.info().remedy.find("f16") != std::string::npos, kv == DType::f16)
                << error.what();
        }
    }
}

}  // namespace
}  // namespace mr::model
