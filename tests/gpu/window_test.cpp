// Models with windows on a GPU: rows use the window's pages as a ring without a byte from the host,
// and have the same bits as sequences that hold all their pages.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/scheduler_cases.h"
#include "families.h"
#include "gpu/engines.h"
#include "model/io/random.h"

namespace mr::decode::window_test {
namespace {

class GpuWindows : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

constexpr std::int64_t kContext = 6000;
constexpr int kWindow = 75, kVocab = 2000;

test::OnDevice window_model(DType type, int window = kWindow) {
    model::ModelSpec spec = model::random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.vocab = kVocab;
    spec.mask.window = window;
    return test::to_device(model::deferred_random_model(spec, type, 11));
}

std::unique_ptr<model::Engine> engine_of(const test::OnDevice& loaded, int sequences,
                                         std::int64_t pool, int max_batch = 192, bool graph = true,
                                         bool persistent = true) {
    model::EngineOptions options;
    options.context = kContext;
    options.max_sequences = sequences;
    options.max_batch = max_batch;
    options.pool = pool;
    options.graph = graph;
    options.persistent = persistent;
    return loaded.engine(options);
}
// Room for whole sequences, whose prompts are one pass.
std::unique_ptr<model::Engine> plain_engine(const test::OnDevice& loaded) {
    return engine_of(loaded, 1, kContext, 2048);
}

test::Order order_of(int prompt, int tokens, std::uint64_t seed = 0) {
    test::Order order;
    for (int i = 0; i < prompt; ++i) {
        order.prompt.push_back((i * 7919 + 17 * static_cast<int>(seed)) % kVocab);
    }
    order.options.max_tokens = tokens;
    order.options.ignore_end = true;
    order.options.sampling.seed = seed;
    return order;
}

// Pools from two rings, in which prompts are shared, down to one, in which they use the ring as
// well; tables of 16 and more entries, which positions wrap around many times.
TEST_F(GpuWindows, ATextGoesRound) {
    for (const DType type : {DType::bf16, DType::q8_0}) {
        const test::OnDevice loaded = window_model(type);
        std::vector<test::Order> orders;
        for (const int prompt : {1, 60, 64, 65, 300, 960, 1000, 1024}) {
            orders.push_back(order_of(prompt, 1500, static_cast<std::uint64_t>(prompt)));
        }
        for (const std::int64_t pool : {std::int64_t{0}, std::int64_t{10 * 32}}) {
            for (const bool persistent : {true, false}) {
                const auto engine = engine_of(loaded, 1, pool, 192, true, persistent);
                EXPECT_EQ(engine->options().context, kContext);
                std::vector<Generated> got;
                for (const test::Order& order : orders) {
                    got.push_back(test::run_orders(*engine, {&order, 1}).front());
                }
                test::expect_as_plain(orders, got, *plain_engine(loaded));
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(GpuWindows, ManyHaveTheBitsOfPlainSequences) {
    const test::OnDevice loaded = window_model(DType::bf16);
    const auto orders = test::random_orders(120, 9, kVocab, 500, 400, model::kCut);
    const auto plain = plain_engine(loaded);
    for (const bool graph : {true, false}) {
        const auto engine = engine_of(loaded, 24, 24 * 10 * 32, 192, graph);
        Scheduler::Totals totals;
        const std::vector<Generated> got = test::run_orders(*engine, orders, &totals);
        EXPECT_GT(totals.found, 1000);
        test::expect_as_plain(orders, got, *plain);
    }
}

// All rows enter new pages of their rings; the host sends nothing.
TEST_F(GpuWindows, AStepThatGoesRoundSendsNothing) {
    const auto engine = engine_of(window_model(DType::bf16), 20, 0);
    Scheduler scheduler(*engine);
    for (std::uint64_t i = 0; i < 20; ++i) {
        const test::Order order = order_of(static_cast<int>(10 + i), 900, i);
        scheduler.add(order.prompt, order.options);
    }
    for (int i = 0; i < 10; ++i) scheduler.step();
    const Ledger before = engine->ledger();
    const std::int64_t free = engine->cache().free_tokens();
    for (int i = 0; i < 700; ++i) {
        scheduler.step();
        engine->cache().check_books();
    }
    EXPECT_EQ(engine->ledger().since(before).host_to_device().bytes, 0u);
    EXPECT_EQ(scheduler.running(), 20u);
    EXPECT_GE(engine->cache().free_tokens(), free);
}

// Blocks that end where a prompt does, in both forms: equal to the CPU's results.
TEST_F(GpuWindows, AnItemHasItsMaskAndOrigin) {
    model::ModelSpec spec = model::random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.vocab = kVocab;
    const auto on_host =
        std::make_shared<const model::Model>(model::random_model(spec, DType::f32, 11));
    const test::OnDevice on_device = test::to_device(model::random_model(spec, DType::f32, 11));
    const std::vector<std::int32_t> text = order_of(200, 1).prompt;
    for (const int prompt : {5, 70, 97}) {
        for (const int block : {4, 32}) {
            ops::AttentionMask mask{ops::AttentionMask::Kind::block_causal, block};
            mask.origin = prompt;
            std::vector<float> rows[2];
            for (const bool cuda : {false, true}) {
                model::EngineOptions options;
                options.context = 256;
                options.max_logits = 64;
                options.cuda = cuda;
                options.kv_type = DType::f32;
                const auto engine =
                    cuda ? on_device.engine(options) : model::make_engine(on_host, options);
                const model::SeqId seq = engine->cache().open();
                const std::span<const std::int32_t> all(text);
                const model::BatchItem first =
                    model::prompt_item(seq, all.first(static_cast<std::size_t>(prompt)));
                engine->submit({&first, 1});
                model::BatchItem two{.seq = seq,
                                     .tokens = all.subspan(static_cast<std::size_t>(prompt),
                                                           static_cast<std::size_t>(2 * block)),
                                     .logits = model::BatchItem::Logits::all};
                two.mask = mask;
                rows[cuda] = test::values(*engine, engine->submit({&two, 1}));
            }
            ASSERT_EQ(rows[0].size(), rows[1].size());
            EXPECT_LT(test::relative_rms(rows[1], rows[0]), 0.002)
                << "prompt " << prompt << " block " << block;
        }
    }
}

}  // namespace
}  // namespace mr::decode::window_test
