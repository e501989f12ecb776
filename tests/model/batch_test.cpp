// A sequence alone and the same sequence inside a ragged batch give the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "core/philox.h"
#include "model/engine.h"
#include "model/model.h"
#include "support.h"

namespace mr::model {
namespace {

using Row = std::vector<float>;

std::vector<std::int32_t> tokens(int count, std::uint64_t seed, int vocab) {
    std::vector<std::int32_t> out;
    for (int i = 0; i < count; ++i) {
        out.push_back(static_cast<std::int32_t>(philox(seed, static_cast<std::uint64_t>(i))[0] %
                                                static_cast<std::uint32_t>(vocab)));
    }
    return out;
}

std::vector<Row> rows_of(Tensor logits) {
    std::vector<Row> out;
    for (std::int64_t r = 0; r < logits.rows(); ++r) {
        out.emplace_back(logits.f32(r), logits.f32(r) + logits.cols());
    }
    return out;
}

EngineOptions options(int threads) {
    EngineOptions out;
    out.threads = threads;
    out.max_sequences = 5;
    out.context = 64;  // of a sequence: what GPT-2's table has
    out.max_batch = 128;
    out.max_logits = 128;
    return out;
}

class Batch : public testing::TestWithParam<const char*> {};

TEST_P(Batch, ASequenceDoesNotSeeItsNeighbours) {
    auto model = std::make_shared<const Model>(load_model(test::reference(GetParam())));
    const int vocab = model->spec.vocab;
    const std::vector<std::int32_t> text = tokens(37, 1, vocab);
    const auto last = BatchItem::Logits::last;
    const auto all = BatchItem::Logits::all;

    std::vector<Row> alone;
    {
        const std::unique_ptr<Engine> opened = make_engine(model, options(1));
        Engine& engine = *opened;
        const SeqId seq = engine.cache().open();
        const BatchItem item{seq, text, all};
        alone = rows_of(engine.submit({&item, 1}));
    }

    for (int threads : {1, 2, 3}) {
        const std::unique_ptr<Engine> opened = make_engine(model, options(threads));
        Engine& engine = *opened;
        const std::vector<std::int32_t> long_text = tokens(40, 2, vocab);
        const std::vector<std::int32_t> short_text = tokens(3, 3, vocab);
        const SeqId before = engine.cache().open();
        const SeqId seq = engine.cache().open();
        const SeqId after = engine.cache().open();
        // A long prompt, the first 20 tokens of ours, and a short one, in one pass.
        const std::span<const std::int32_t> ours(text);
        const BatchItem first[] = {
            {before, long_text, all}, {seq, ours.first(20), all}, {after, short_text, last}};
        std::vector<Row> got = rows_of(engine.submit(first));
        for (std::size_t i = 0; i < 20; ++i) {
            EXPECT_EQ(got[40 + i], alone[i]) << "prefill row " << i << ", threads " << threads;
        }
        // Then it decodes beside others that prefill and decode.
        for (std::size_t i = 20; i < text.size(); ++i) {
            const std::int32_t other = static_cast<std::int32_t>(i) % vocab;
            const BatchItem step[] = {{after, short_text, last},
                                      {seq, ours.subspan(i, 1), last},
                                      {before, {&other, 1}, last}};
            got = rows_of(engine.submit(step));
            EXPECT_EQ(got[1], alone[i]) << "decode row " << i << ", threads " << threads;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Families, Batch,
                         testing::Values("llama2", "mistral", "qwen3", "gpt2", "gpt-neox"),
                         [](const auto& info) {
                             std::string name = info.param;
                             for (char& c : name) c = c == '-' ? '_' : c;
                             return name;
                         });

// A block that is computed repeatedly until it is done: uncommitted positions leave no trace.
TEST(Engine, PositionsThatAreNotCommittedAreWrittenAgain) {
    auto model = std::make_shared<const Model>(load_model(test::reference("llama2")));
    const std::vector<std::int32_t> text = tokens(30, 1, model->spec.vocab);
    const std::span<const std::int32_t> all(text);
    std::vector<Row> rows[2];
    for (const bool tried_before : {false, true}) {
        const std::unique_ptr<Engine> engine = make_engine(model, options(1));
        const SeqId seq = engine->cache().open();
        const BatchItem prompt{seq, all.first(20)};
        engine->submit({&prompt, 1});
        if (tried_before) {
            const std::vector<std::int32_t> other = tokens(10, 9, model->spec.vocab);
            const BatchItem draft{.seq = seq, .tokens = other, .commit = 0};
            engine->submit({&draft, 1});
            EXPECT_EQ(engine->cache().length(seq), 20);
            const BatchItem half{.seq = seq, .tokens = all.subspan(20, 10), .commit = 4};
            engine->submit({&half, 1});
            EXPECT_EQ(engine->cache().length(seq), 24);
        } else {
            const BatchItem begin{.seq = seq, .tokens = all.subspan(20, 4)};
            engine->submit({&begin, 1});
        }
        const BatchItem rest{
            .seq = seq, .tokens = all.subspan(24, 6), .logits = BatchItem::Logits::all};
        rows[tried_before] = rows_of(engine->submit({&rest, 1}));
    }
    EXPECT_EQ(rows[0], rows[1]);
}

// Items with their own masks, beside others: each as if alone.
TEST(Engine, AnItemSeesByItsOwnMask) {
    auto model = std::make_shared<const Model>(load_model(test::reference("llama2")));
    const std::vector<std::int32_t> text = tokens(20, 1, model->spec.vocab);
    const auto all = BatchItem::Logits::all;
    ops::AttentionMask full;
    full.kind = ops::AttentionMask::Kind::full;
    const auto run = [&](std::vector<std::optional<ops::AttentionMask>> masks) {
        const std::unique_ptr<Engine> engine = make_engine(model, options(1));
        std::vector<BatchItem> items;
        for (const auto& mask : masks) {
            items.push_back({engine->cache().open(), text, all});
            items.back().mask = mask;
        }
        return rows_of(engine->submit(items));
    };
    const std::vector<Row> causal = run({std::nullopt}), whole = run({full});
    EXPECT_NE(causal.front(), whole.front()) << "the first token sees the last";
    const std::vector<Row> mixed = run({std::nullopt, full, std::nullopt, full, full});
    for (std::size_t i = 0; i < 5; ++i) {
        const std::vector<Row>& want = i == 0 || i == 2 ? causal : whole;
        for (std::size_t r = 0; r < text.size(); ++r) {
            EXPECT_EQ(mixed[i * text.size() + r], want[r]) << "item " << i << " row " << r;
        }
    }
}

TEST(KvCache, PagesComeBack) {
    ModelSpec spec;
    spec.layers = 1;
    spec.kv_heads = 1;
    spec.head_dim = 8;
    KvCache cache(spec, 5, 2, 160, DType::f32);
    const SeqId a = cache.open();
    const SeqId b = cache.open();
    EXPECT_THROW(cache.open(), Error);
    const std::int64_t all = cache.free_tokens();
    cache.reserve(a, 33);
    EXPECT_EQ(cache.held(a), 2);
    cache.advance(a, 33);
    EXPECT_THROW(cache.reserve(b, 1000), Error);
    cache.truncate(a, 32);
    EXPECT_EQ(cache.held(a), 1);
    EXPECT_EQ(cache.length(a), 32);
    cache.close(a);
    cache.close(b);
    EXPECT_EQ(cache.free_tokens(), all);
    EXPECT_THROW(cache.length(a), ContractError);
    EXPECT_EQ(cache.open(), a);
}

TEST(Engine, RefusesWhatItCannotDo) {
    auto model = std::make_shared<const Model>(load_model(test::reference("gpt2")));
    EngineOptions too_long;
    too_long.context = model->spec.context + 1;
    EXPECT_THROW(make_engine(model, too_long), Error);  // learned positions end there

    EngineOptions too_large;
    too_large.context = (std::int64_t{1} << 30) - 1;
    auto rotary = std::make_shared<const Model>(load_model(test::reference("llama2")));
    try {
        make_engine(rotary, too_large);
        FAIL() << "a plan over the machine's memory was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 3);
        EXPECT_NE(std::string(error.what()).find("KV cache"), std::string::npos) << error.what();
    }

    const std::unique_ptr<Engine> opened = make_engine(model, {});
    Engine& engine = *opened;
    const SeqId seq = engine.cache().open();
    const std::int32_t bad = model->spec.vocab;
    const BatchItem item{seq, {&bad, 1}, BatchItem::Logits::last};
    EXPECT_THROW(engine.submit({&item, 1}), Error);
}

TEST(Engine, LearnedPositionsEnd) {
    auto model = std::make_shared<const Model>(load_model(test::reference("gpt2")));
    EngineOptions two;
    two.max_sequences = 2;
    two.max_batch = 2 * model->spec.context;
    const std::unique_ptr<Engine> opened = make_engine(model, two);
    Engine& engine = *opened;
    const SeqId seq = engine.cache().open();
    const std::vector<std::int32_t> text = tokens(model->spec.context + 1, 1, model->spec.vocab);
    const BatchItem fits = prompt_item(seq, std::span(text).first(text.size() - 1));
    engine.submit({&fits, 1});
    const BatchItem over{seq, std::span(text).last(1), BatchItem::Logits::last};
    EXPECT_THROW(engine.submit({&over, 1}), Error);
}

TEST(Engine, PlanIsWhatItTakes) {
    const Model model = load_model(test::reference("llama2"));
    EngineOptions options;
    options.context = 64;
    options.threads = 1;
    std::uint64_t kv = 0;
    const MemoryPlan plan = plan_engine(model, options);
    for (const MemoryPlan::Item& item : plan.items()) {
        if (item.name == "KV cache") kv = item.bytes;
    }
    // 2 (keys, values) * layers * tokens * kv_dim * 4 bytes
    EXPECT_EQ(kv, 2ull * 2 * 64 * 16 * 4);
}

}  // namespace
}  // namespace mr::model
