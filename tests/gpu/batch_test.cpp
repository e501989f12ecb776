// 256 sequences of mixed lengths at once, prompts and single tokens side by side, then decoded
// together: each has the same bits as alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/loop.h"
#include "gpu/engines.h"
#include "model/cuda/device_engine.h"
#include "model/io/random.h"
#include "ops/attention/paged/attention_cuda.h"

namespace mr::model {
namespace {

class GpuBatch : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

constexpr int kSequences = 256;
constexpr int kTokens = 10;  // drawn by each sequence

// Single tokens, both sides of the limit between GEMMs for few rows and for many (64), whole pages
// (32) and partial ones, and some long prompts.
int prompt_length(int s) {
    if (s % 37 == 36) return 250 + s;
    if (s % 11 == 10) return 62 + s % 5;
    if (s % 9 == 8) return 1;
    if (s % 13 == 12) return 32;
    return 2 + s * 29 % 47;
}
// The prompts of these come in the first pass, and one more token each in the second, beside the
// prompts of the others.
bool comes_first(int s) { return s % 2 == 0; }

std::vector<std::int32_t> prompt_of(int s, int vocab) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < prompt_length(s); ++i) ids.push_back((i * 7919 + 131 * (s + 1)) % vocab);
    return ids;
}

// Everything observed of one sequence.
struct Seen {
    std::vector<float> first, second, last;  // logits: of each pass, and after the drawn tokens
    std::vector<std::int32_t> drawn;
    std::vector<float> numbers;  // probability and confidence of each token
};

void expect_same(const Seen& got, const Seen& want) {
    EXPECT_TRUE(got.first == want.first) << "the first pass";
    EXPECT_TRUE(got.second == want.second) << "the pass of prompts and single tokens";
    EXPECT_EQ(got.drawn, want.drawn);
    EXPECT_TRUE(got.numbers == want.numbers) << "probabilities";
    EXPECT_TRUE(got.last == want.last) << "the pass after the drawn tokens";
}

// The sequences [from, from + count) in one batch.
std::vector<Seen> run(Engine& engine, int from, int count) {
    const int vocab = engine.model().spec.vocab;
    const auto all = static_cast<std::size_t>(count);
    std::vector<Seen> seen(all);
    std::vector<SeqId> ids;
    std::vector<std::vector<std::int32_t>> prompts;
    for (int s = from; s < from + count; ++s) {
        ids.push_back(engine.cache().open());
        prompts.push_back(prompt_of(s, vocab));
    }
    // Stores the logits of the items, one row each, in `part` of the sequences in `of`.
    const auto keep = [&](Tensor logits, const std::vector<std::size_t>& of,
                          std::vector<float> Seen::*part) {
        const std::vector<float> rows = test::values(engine, logits);
        ASSERT_EQ(rows.size(), of.size() * static_cast<std::size_t>(vocab));
        auto row = rows.begin();
        for (const std::size_t i : of) {
            (seen[i].*part).assign(row, row + vocab);
            row += vocab;
        }
    };
    std::vector<std::size_t> everyone, early;
    for (std::size_t i = 0; i < all; ++i) {
        everyone.push_back(i);
        if (comes_first(from + static_cast<int>(i))) early.push_back(i);
    }
    std::vector<BatchItem> items;
    for (const std::size_t i : early) items.push_back(prompt_item(ids[i], prompts[i]));
    if (!items.empty()) keep(engine.submit(items), early, &Seen::first);

    const std::vector<std::int32_t> more{3};
    items.clear();
    for (const std::size_t i : everyone) {
        items.push_back(
            prompt_item(ids[i], comes_first(from + static_cast<int>(i)) ? more : prompts[i]));
    }
    const Tensor logits = engine.submit(items);
    keep(logits, everyone, &Seen::second);

    // Greedy rows, rows that draw, rows with a penalty.
    std::vector<decode::DecodeRow> rows;
    for (const std::size_t i : everyone) {
        const int s = from + static_cast<int>(i);
        decode::DecodeRow row;
        row.seq = ids[i];
        row.most = kTokens;
        row.params.seed = static_cast<std::uint64_t>(5 + s);
        if (s % 3 == 0) row.params.temperature = 0;
        if (s % 5 == 0) row.params.repeat_penalty = 1.2f;
        row.recent = prompts[i];
        rows.push_back(row);
    }
    decode::DecodeLoop loop(engine, logits, rows);
    for (int t = 0; t < kTokens; ++t) {
        const std::span<const ops::Sampled> drawn = loop.next();
        for (const std::size_t i : everyone) {
            seen[i].drawn.push_back(drawn[i].id);
            seen[i].numbers.push_back(drawn[i].probability);
            seen[i].numbers.push_back(drawn[i].confidence);
        }
    }
    items.clear();
    for (const std::size_t i : everyone) items.push_back({ids[i], {&seen[i].drawn.back(), 1}});
    keep(engine.submit(items), everyone, &Seen::last);
    for (const SeqId id : ids) engine.cache().close(id);
    return seen;
}

// A small model with the features of a large one: heads of 64, rows that end inside a granule
// (hidden 1376).
test::OnDevice small_model(DType type) {
    ModelSpec spec = random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.vocab = 2000;
    return test::to_device(deferred_random_model(spec, type, 11));
}

void every_sequence_has_the_bits_it_has_alone(DType type) {
    const test::OnDevice loaded = small_model(type);
    std::int64_t positions = 0, longest = 0, first_pass = 0, second_pass = 0;
    for (int s = 0; s < kSequences; ++s) {
        const int length = prompt_length(s);
        positions += length + 1 + kTokens;
        longest = std::max<std::int64_t>(longest, length);
        first_pass += comes_first(s) ? length : 0;
        second_pass += comes_first(s) ? 1 : length;
    }
    std::vector<std::vector<Seen>> together;
    for (const bool graph : {true, false}) {
        EngineOptions options;
        options.context = longest + 1 + kTokens;
        options.pool = positions;
        options.max_sequences = kSequences;
        options.max_batch = static_cast<int>(std::max(first_pass, second_pass));
        options.graph = options.dependent_launch = graph;
        const auto engine = loaded.engine(options);
        together.push_back(run(*engine, 0, kSequences));
        EXPECT_FALSE(engine->one_kernel());
    }
    for (const bool graph : {true, false}) {
        EngineOptions options;
        options.context = longest + 1 + kTokens;
        options.max_batch = static_cast<int>(longest);
        options.graph = options.dependent_launch = graph;
        const auto engine = loaded.engine(options);
        for (int s = 0; s < kSequences; s += graph ? 1 : 16) {
            SCOPED_TRACE("sequence " + std::to_string(s) + " of " +
                         std::to_string(prompt_length(s)) + (graph ? "" : ", alone without graph"));
            const Seen alone = std::move(run(*engine, s, 1).front());
            ASSERT_EQ(alone.drawn.size(), std::size_t{kTokens});
            for (const bool batch_graph : {true, false}) {
                SCOPED_TRACE(batch_graph ? "batch in a graph" : "batch without graph");
                expect_same(together[batch_graph ? 0 : 1][static_cast<std::size_t>(s)], alone);
            }
            if (testing::Test::HasFailure()) return;
        }
        // A single sequence uses the step in one kernel, if there is one.
        EXPECT_EQ(engine->one_kernel(), cuda::device()->sm >= 90);
    }
}

EngineOptions room_for(int sequences) {
    EngineOptions options;
    options.max_sequences = sequences;
    options.context = 0;
    options.max_batch = 0;
    for (int s = 0; s < sequences; ++s) {
        options.context = std::max<std::int64_t>(options.context, prompt_length(s) + 1 + kTokens);
        options.max_batch += prompt_length(s);
    }
    return options;
}

// 256 sequences use persistent blocks in decode attention (`--disable resident-attention` switches
// them off), with the same bits. Prompts of more than cuda::kDecodeRows tokens are left out: their
// kernels add in another order.
TEST_F(GpuBatch, AttentionWhoseBlocksStayHasTheBitsOfTheOther) {
    const test::OnDevice loaded = small_model(DType::bf16);
    // Three steps of 64 keys for every multiprocessor, and each of these has one.
    ASSERT_GE(kSequences * loaded.model->spec.kv_heads, 3 * cuda::device()->multiprocessors);
    std::vector<std::vector<Seen>> seen;
    for (const bool resident : {true, false}) {
        EngineOptions options = room_for(kSequences);
        options.resident_attention = resident;
        seen.push_back(run(*loaded.engine(options), 0, kSequences));
    }
    int compared = 0;
    for (int s = 0; s < kSequences; ++s) {
        if (prompt_length(s) > cuda::kDecodeRows) continue;
        SCOPED_TRACE("sequence " + std::to_string(s) + " of " + std::to_string(prompt_length(s)));
        expect_same(seen[1][static_cast<std::size_t>(s)], seen[0][static_cast<std::size_t>(s)]);
        ++compared;
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(compared, 200);
}

// Without batch products, as on 8.0, a step of more than 256 rows is not captured: its products
// take 8 rows per launch. On 7.5 they take all rows at once.
TEST_F(GpuBatch, AStepTooLargeForAGraphHasTheSameBits) {
    constexpr int kMany = 300;
    const test::OnDevice loaded = small_model(DType::bf16);
    std::vector<std::vector<Seen>> seen;
    for (const bool batch_products : {true, false}) {
        EngineOptions options = room_for(kMany);
        options.batch_products = batch_products;
        const auto engine = loaded.engine(options);
        seen.push_back(run(*engine, 0, kMany));
        const Engine::StepLaunches step = engine->step_launches(kMany, options.context);
        const int sm = cuda::device()->sm;
        EXPECT_EQ(step.launches < step.kernels, sm < 80 || (batch_products && sm == 90));
    }
    for (int s = 0; s < kMany; ++s) {
        SCOPED_TRACE("sequence " + std::to_string(s) + " of " + std::to_string(prompt_length(s)));
        expect_same(seen[1][static_cast<std::size_t>(s)], seen[0][static_cast<std::size_t>(s)]);
        if (testing::Test::HasFailure()) return;
    }
}

TEST_F(GpuBatch, In16BitsEverySequenceHasTheBitsItHasAlone) {
    every_sequence_has_the_bits_it_has_alone(DType::bf16);
}
TEST_F(GpuBatch, In8BitsEverySequenceHasTheBitsItHasAlone) {
    every_sequence_has_the_bits_it_has_alone(DType::q8_0);
}

}  // namespace
}  // namespace mr::model
