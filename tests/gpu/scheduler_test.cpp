// The scheduler's loads on a GPU: sequences come and go between steps, and each has the same bits
// as alone.
#include "decode/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/scheduler_cases.h"
#include "gpu/engines.h"
#include "model/io/random.h"

namespace mr::decode {
namespace {

class GpuScheduler : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

test::OnDevice small_model(DType type) {
    model::ModelSpec spec = model::random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.vocab = 2000;
    return test::to_device(model::deferred_random_model(spec, type, 11));
}

std::unique_ptr<model::Engine> engine_of(const test::OnDevice& loaded, int sequences,
                                         std::int64_t pool = 0, bool graph = true, int logits = 0) {
    model::EngineOptions options;
    options.context = 400;
    options.max_sequences = sequences;
    options.max_batch = 512;
    options.pool = pool;
    options.graph = graph;
    options.max_logits = logits;
    return loaded.engine(options);
}

// One engine for all: cached prefixes do not change bits either, and a request that finds none
// computes its own prompt.
struct Alone {
    std::unique_ptr<model::Engine> engine;
    model::Engine& operator()() const { return *engine; }
};

void a_thousand_sequences(DType type, int count) {
    const test::OnDevice loaded = small_model(type);
    const auto orders = test::random_orders(count, 5, 2000, 330, 40, model::kCut);
    const auto engine = engine_of(loaded, 40, 6000);
    Scheduler::Totals totals;
    const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
    EXPECT_GT(totals.found, 1000);
    EXPECT_GT(totals.mixed, 50);
    test::expect_as_alone(orders, got, Alone{engine_of(loaded, 1)});
    // Steps launched kernel by kernel: the same.
    const auto plain = engine_of(loaded, 40, 6000, false);
    const std::vector<Generated> again =
        test::run_orders(*plain, std::span(orders).first(orders.size() / 4));
    for (std::size_t i = 0; i < again.size(); ++i) {
        if (again[i].reason == StopReason::cancelled || got[i].reason == StopReason::cancelled) {
            continue;
        }
        ASSERT_EQ(again[i].ids, got[i].ids) << i;
        ASSERT_EQ(again[i].confidence, got[i].confidence) << i;
    }
}

TEST_F(GpuScheduler, LogprobsAreOfTheDrawsAndChangeNoBits) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto orders = test::random_orders(60, 8, 2000, 330, 24, model::kCut);
    test::expect_logprobs(*engine_of(loaded, 6, 4000), orders, Alone{engine_of(loaded, 1)});
}

TEST_F(GpuScheduler, AdjustedTextsHaveTheBitsTheyHaveAlone) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto orders = test::random_orders(120, 9, 2000, 330, 24, model::kCut);
    // Few rows sample inside their graph, many after it.
    test::expect_adjusted(*engine_of(loaded, 6, 4000), orders, Alone{engine_of(loaded, 1)});
    test::expect_adjusted(*engine_of(loaded, 40, 6000), orders, Alone{engine_of(loaded, 1)});
    test::expect_adjusted(*engine_of(loaded, 6, 4000, false), orders, Alone{engine_of(loaded, 1)});
}

TEST_F(GpuScheduler, PromptsAreScoredBesideTexts) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto orders = test::random_orders(60, 10, 2000, 330, 24, model::kCut);
    const auto plain = engine_of(loaded, 1, 0, true, model::kCut);
    for (const int logits : {65, 200}) {
        test::expect_prompts_scored(*engine_of(loaded, 6, 4000, true, logits), orders,
                                    Alone{engine_of(loaded, 1, 0, true, model::kCut + 1)}, *plain);
    }
}

TEST_F(GpuScheduler, AThousandSequencesHaveTheBitsTheyHaveAlone) {
    a_thousand_sequences(DType::bf16, 1000);
}
TEST_F(GpuScheduler, In8BitsToo) { a_thousand_sequences(DType::q8_0, 200); }

TEST_F(GpuScheduler, EqualPromptsAreComputedOnce) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto engine = engine_of(loaded, 16);
    std::vector<test::Order> orders(16);
    for (std::size_t i = 0; i < orders.size(); ++i) {
        orders[i].prompt = std::vector<std::int32_t>(300, 7);
        orders[i].options.max_tokens = 12;
        orders[i].options.ignore_end = true;
        orders[i].options.sampling.seed = i;
    }
    Scheduler::Totals totals;
    const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
    EXPECT_EQ(totals.prefill.tokens, 300);
    test::expect_as_alone(orders, got, Alone{engine_of(loaded, 1)});
}

// A step in which nothing joins or leaves sends nothing.
TEST_F(GpuScheduler, AStepOfManySendsNothing) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto engine = engine_of(loaded, 20);
    Scheduler scheduler(*engine);
    for (int i = 0; i < 20; ++i) {
        GenerateOptions options;
        options.max_tokens = 60;
        options.ignore_end = true;
        scheduler.add(std::vector<std::int32_t>(static_cast<std::size_t>(10 + i), 3 + i), options);
    }
    for (int i = 0; i < 10; ++i) scheduler.step();
    const Ledger before = engine->ledger();
    for (int i = 0; i < 20; ++i) scheduler.step();
    EXPECT_EQ(engine->ledger().since(before).host_to_device().bytes, 0u);
    EXPECT_EQ(scheduler.running(), 20u);
}

// The engine runs ahead of what is read; at the end everything left is waited for. No text gets
// several tokens while another one waits for its next.
TEST_F(GpuScheduler, TokensOfAllTextsComeInTurn) {
    const test::OnDevice loaded = small_model(DType::bf16);
    const auto engine = engine_of(loaded, 6);
    Scheduler scheduler(*engine);
    std::vector<int> tokens(6, 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        GenerateOptions options;
        options.max_tokens = 20;
        options.ignore_end = true;
        options.on_token = [&tokens, i](std::int32_t, const ops::DrawnLogprobs*) {
            ++tokens[i];
            const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
            // Two if a draw was not ready yet when its row was polled; the fault gave three.
            EXPECT_LE(*most - *least, 2) << "text " << i;
        };
        scheduler.add(std::vector<std::int32_t>(10, static_cast<std::int32_t>(3 + i)), options);
    }
    while (scheduler.step()) {
    }
    EXPECT_EQ(tokens, std::vector<int>(6, 20));
}

// Cuts at every multiple of kCut, in passes of any size, beside other prompts.
TEST_F(GpuScheduler, WhereAPromptIsCutChangesNoBits) {
    const test::OnDevice loaded = small_model(DType::bf16);
    for (const int length : {63, 64, 65, 127, 128, 129, 191, 192, 193, 256, 257, 320, 384}) {
        std::vector<std::int32_t> prompt;
        for (int i = 0; i < length; ++i) prompt.push_back((i * 7919 + 17) % 2000);
        std::vector<std::vector<float>> seen;
        for (const int piece : {64, 128, 192, 512}) {
            const auto engine = engine_of(loaded, 4);
            const model::SeqId seq = engine->cache().open(), other = engine->cache().open();
            std::vector<float> logits;
            for (int at = 0; at < length; at += piece) {
                const int count = std::min(piece, length - at);
                const std::vector<std::int32_t> beside(static_cast<std::size_t>(1 + at % 7), 3);
                const model::BatchItem items[] = {
                    model::prompt_item(seq,
                                       std::span(prompt).subspan(static_cast<std::size_t>(at),
                                                                 static_cast<std::size_t>(count)),
                                       length),
                    model::prompt_item(other, beside)};
                const Tensor rows = engine->submit({items, piece == 128 ? 2u : 1u});
                logits = test::values(*engine, rows.slice_rows(0, 1));
            }
            seen.push_back(logits);
        }
        for (std::size_t i = 1; i < seen.size(); ++i) {
            ASSERT_EQ(seen[i], seen[0]) << "a prompt of " << length << ", cut " << i;
        }
    }
}

}  // namespace
}  // namespace mr::decode
