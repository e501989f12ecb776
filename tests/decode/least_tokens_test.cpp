// Where a text may end: its least length, its own end tokens, and what of the end is text.
#include "decode/least_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "decode/scheduler_cases.h"
#include "model/model.h"
#include "support.h"

namespace mr::decode::least_tokens_test {
namespace {

// Allows a fixed set of tokens.
class Fixed final : public ops::TokenFilter {
  public:
    Fixed(std::int64_t vocab, const std::set<std::int32_t>& allowed)
        : mask_(static_cast<std::size_t>((vocab + 31) / 32)) {
        for (const std::int32_t id : allowed) {
            mask_[static_cast<std::size_t>(id / 32)] |= 1U << id % 32;
        }
    }
    std::span<const std::uint32_t> mask() override { return mask_; }
    void accept(std::int32_t token) override { seen.push_back(token); }
    bool finished() const override { return seen.size() > 3; }
    std::vector<std::int32_t> seen;

  private:
    std::vector<std::uint32_t> mask_;
};

std::set<std::int32_t> tokens_of(std::span<const std::uint32_t> mask) {
    std::set<std::int32_t> out;
    for (std::size_t i = 0; i < 32 * mask.size(); ++i) {
        if (mask[i / 32] >> i % 32 & 1) out.insert(static_cast<std::int32_t>(i));
    }
    return out;
}

std::set<std::int32_t> all_of(std::int32_t vocab) {
    std::set<std::int32_t> out;
    for (std::int32_t id = 0; id < vocab; ++id) out.insert(id);
    return out;
}

TEST(LeastTokens, NoEndBeforeTheLeastLength) {
    for (const std::int32_t vocab : {3, 31, 32, 33, 64, 100}) {
        const std::int32_t ends[] = {0, vocab - 1, vocab, 4000, -1};  // some are no tokens
        for (const int least : {1, 2, 5}) {
            LeastTokens filter(nullptr, ends, least, vocab);
            for (int t = 0; t < 8; ++t) {
                std::set<std::int32_t> want = all_of(vocab);
                if (t < least) {
                    want.erase(0);
                    want.erase(vocab - 1);
                }
                ASSERT_EQ(tokens_of(filter.mask()), want) << vocab << " " << least << " " << t;
                ASSERT_FALSE(filter.finished());
                filter.accept(1);
            }
        }
    }
}

TEST(LeastTokens, AnotherFilterGoesBeforeIt) {
    const std::int32_t ends[] = {2, 40};
    auto own = std::make_unique<Fixed>(50, std::set<std::int32_t>{2, 7, 40});
    Fixed& inner = *own;
    LeastTokens filter(std::move(own), ends, 2, 50);
    EXPECT_EQ(tokens_of(filter.mask()), (std::set<std::int32_t>{7}));
    filter.accept(7);
    EXPECT_EQ(tokens_of(filter.mask()), (std::set<std::int32_t>{7}));
    filter.accept(7);
    EXPECT_EQ(tokens_of(filter.mask()), (std::set<std::int32_t>{2, 7, 40}));
    filter.accept(8);
    EXPECT_EQ(inner.seen, (std::vector<std::int32_t>{7, 7, 8}));
    EXPECT_FALSE(filter.finished());
    filter.accept(9);
    EXPECT_TRUE(filter.finished());
    // Nothing but an end is left: it may come.
    LeastTokens only(std::make_unique<Fixed>(50, std::set<std::int32_t>{2, 40}), ends, 2, 50);
    EXPECT_EQ(tokens_of(only.mask()), (std::set<std::int32_t>{2, 40}));
}

class Ends : public testing::Test {
  protected:
    Ends() {
        model::EngineOptions options;
        options.threads = 1;
        options.context = 160;
        options.max_sequences = 4;
        model_ = std::make_shared<const model::Model>(model::load_model(test::reference("llama2")));
        engine_ = model::make_engine(model_, options);
        eos_ = *model_->tokenizer->eos();
        options_.max_tokens = 30;
        options_.sampling.seed = 5;
        options_.sampling.temperature = 1;
    }
    Generated made(const GenerateOptions& options) {
        const test::Order order{.prompt = {1, 9, 11}, .options = options};
        return std::move(test::run_orders(*engine_, {&order, 1}).front());
    }
    // The text of ids, after a prompt.
    std::string text_of(std::vector<std::int32_t> ids) const {
        text::StreamDecoder decoder(*model_->tokenizer, {});
        std::string out;
        for (const std::int32_t id : ids) out += decoder.push(id);
        return out + decoder.flush();
    }
    // The text without an end.
    Generated endless() {
        GenerateOptions options = options_;
        options.ignore_end = true;
        return made(options);
    }

    std::shared_ptr<const model::Model> model_;
    std::unique_ptr<model::Engine> engine_;
    std::int32_t eos_ = 0;
    GenerateOptions options_;
};

TEST_F(Ends, AStopIdEndsTheText) {
    const Generated whole = endless();
    const std::int32_t id = whole.ids[6];
    const auto first = std::find(whole.ids.begin(), whole.ids.end(), id) - whole.ids.begin();
    for (const bool ignore : {false, true}) {
        for (const bool include : {false, true}) {
            GenerateOptions options = options_;
            options.stop_ids = {id};
            options.ignore_end = ignore;
            options.include_stop = include;
            const Generated got = made(options);
            ASSERT_EQ(got.reason, StopReason::end_of_text);
            EXPECT_EQ(got.end_token, !include);
            const std::vector<std::int32_t> ids(whole.ids.begin(), whole.ids.begin() + first + 1);
            EXPECT_EQ(got.ids, ids);
            const auto shown = ids.begin() + first + (include ? 1 : 0);
            EXPECT_EQ(got.text, text_of({ids.begin(), shown}));
        }
    }
}

// The end token is all but certain at every place.
TEST_F(Ends, ATextHasItsLeastLength) {
    options_.adjust.bias = {{eos_, 1000}};
    EXPECT_EQ(made(options_).ids, std::vector<std::int32_t>{eos_});
    for (const int least : {1, 2, 20, 29, 30, 31}) {
        GenerateOptions options = options_;
        options.min_tokens = least;
        const Generated got = made(options);
        const auto length = static_cast<std::size_t>(std::min(least, 30));
        ASSERT_EQ(got.ids.size(), std::min<std::size_t>(length + 1, 30)) << least;
        EXPECT_EQ(std::count(got.ids.begin(), got.ids.end(), eos_), least < 30 ? 1 : 0);
        EXPECT_EQ(got.reason, least < 30 ? StopReason::end_of_text : StopReason::length);
    }
}

TEST_F(Ends, StopIdsWaitForTheLeastLength) {
    const Generated whole = endless();
    GenerateOptions options = options_;
    options.ignore_end = true;
    options.min_tokens = 12;
    options.stop_ids = {whole.ids[3]};
    const Generated got = made(options);
    // The same text up to where the token came.
    const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[3]);
    const auto same = first - whole.ids.begin();
    ASSERT_LT(same, 12);
    EXPECT_TRUE(std::equal(whole.ids.begin(), first, got.ids.begin()));
    EXPECT_EQ(std::count(got.ids.begin(), got.ids.begin() + 12, whole.ids[3]), 0);
    EXPECT_GE(got.ids.size(), 12U);
}

TEST_F(Ends, StopStringsWaitForTheLeastLength) {
    options_.ignore_end = true;
    const Generated whole = endless();
    const std::string stop = text_of({whole.ids[4], whole.ids[5]});
    ASSERT_FALSE(stop.empty());
    GenerateOptions options = options_;
    options.stop = {stop};
    const Generated early = made(options);
    ASSERT_EQ(early.reason, StopReason::stop_string);
    ASSERT_LE(early.ids.size(), 6U);
    EXPECT_EQ(early.text, whole.text.substr(0, whole.text.find(stop)));
    options.include_stop = true;
    EXPECT_EQ(made(options).text, whole.text.substr(0, whole.text.find(stop) + stop.size()));
    // With its last token the stop string is text.
    options.min_tokens = static_cast<int>(early.ids.size());
    const Generated late = made(options);
    EXPECT_GT(late.ids.size(), early.ids.size());
    options.min_tokens -= 1;  // it may begin before
    EXPECT_EQ(made(options).ids, early.ids);
    options.min_tokens = 30;
    EXPECT_EQ(made(options).text, whole.text);
}

TEST_F(Ends, SpecialTokensMayBeShown) {
    options_.adjust.bias = {{eos_, 1000}};
    options_.ignore_end = true;
    options_.max_tokens = 2;
    EXPECT_EQ(made(options_).text, "");
    options_.show_special = true;
    EXPECT_EQ(made(options_).text, model_->tokenizer->piece(eos_) + model_->tokenizer->piece(eos_));
    EXPECT_NE(made(options_).text, "");
}

}  // namespace
}  // namespace mr::decode::least_tokens_test
