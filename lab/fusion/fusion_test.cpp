// The parts of `millrace-lab fusion` that need no GPU: its score, on the CPU engine, and its rules.
#include "lab/fusion/fusion.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lab/fusion/score.h"
#include "model/io/random.h"
#include "model/model.h"

namespace mr::fusion {
namespace {

std::unique_ptr<model::Engine> open(const char* family, int max_logits) {
    model::EngineOptions options;
    options.threads = 2;
    options.max_logits = max_logits;
    const std::string folder = std::string(MR_SOURCE_DIR) + "/tests/reference/" + family;
    return model::make_engine(std::make_shared<const model::Model>(model::load_model(folder)),
                              options);
}

// It feeds the given tokens: on the CPU a fed token has the same bits as in a prompt.
TEST(FusionScore, IsTheNllOfThePrompt) {
    for (const char* family : {"gpt-neox", "llama2"}) {
        SCOPED_TRACE(family);
        const std::unique_ptr<model::Engine> engine = open(family, 24);
        const std::vector<std::int32_t> ids = decode::made_up_ids(24, engine->model().spec.vocab);
        const double fed = score_fed(*engine, ids);
        const model::SeqId seq = engine->cache().open();
        const model::BatchItem item =
            model::prompt_item(seq, std::span(ids).first(23), model::BatchItem::Logits::all);
        std::vector<double> nll(23);
        engine->cross_entropy(nll, engine->submit({&item, 1}), std::span(ids).subspan(1));
        double nats = 0;
        for (std::size_t i = 1; i < nll.size(); ++i) nats += nll[i];  // the first is not fed
        EXPECT_EQ(fed, nats / 22);
        engine->cache().close(seq);
        EXPECT_EQ(score_fed(*engine, ids), fed) << "a second time, in the same engine";
    }
}

TEST(FusionRules, FourDigits) {
    EXPECT_TRUE(same_to_4_digits(10.8312, 10.8351));
    EXPECT_FALSE(same_to_4_digits(10.8312, 10.8365));
    EXPECT_TRUE(same_to_4_digits(1.23412, 1.23451));
    EXPECT_FALSE(same_to_4_digits(1.234, 1.235));
    EXPECT_FALSE(same_to_4_digits(1, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_TRUE(same_to_4_digits(0, 0));
}

TEST(FusionRules, MadeUpIdsAreOfTheVocabularyAndAlwaysTheSame) {
    const std::vector<std::int32_t> ids = decode::made_up_ids(300, 50304);
    EXPECT_EQ(ids, decode::made_up_ids(300, 50304));
    EXPECT_GT(std::set(ids.begin(), ids.end()).size(), 290u);
    for (const std::int32_t id : ids) EXPECT_TRUE(id >= 0 && id < 50304);
}

TEST(FusionRules, NothingFusedHasEverySwitchOff) {
    const model::EngineOptions none = nothing_fused({});
    EXPECT_FALSE(none.fuse || none.add_in_product || none.add_in_norm || none.norms_together ||
                 none.graph || none.dependent_launch || none.persistent);
    // These are not fusions of a step of one row.
    EXPECT_TRUE(none.batch_products && none.resident_attention);
}

}  // namespace
}  // namespace mr::fusion
