// Diffusion texts on a GPU: token for token those of a plain decoder over the same kernels,
// whatever shares their passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/cuda/loop.h"
#include "core/cuda/testing.h"
#include "decode/diffusion_cases.h"
#include "decode/diffusion_endings.h"
#include "decode/eval_diffusion.h"
#include "decode/open_sequence.h"
#include "gpu/engines.h"
#include "model/cuda/device_resident.h"
#include "model/io/random.h"
#include "ops/attention/flash/dispatch.cuh"

namespace mr::decode {
namespace {

using test::DiffusionCase;

std::unique_ptr<model::Engine> engine_of(const DiffusionCase& of, DType type, int sequences,
                                         std::int64_t pool, model::EngineOptions options = {}) {
    static std::map<std::string, std::unique_ptr<test::OnDevice>> models;
    auto& model = models[std::string(of.name) + dtype_name(type)];
    if (!model) {
        model = std::make_unique<test::OnDevice>(
            test::to_device(model::deferred_random_model(test::diffusion_spec(of), type, 11)));
    }
    options.context = 300;
    options.max_sequences = sequences;
    options.max_batch = 320;
    options.max_logits = 320;
    options.pool = pool;
    return model->engine(options);
}

// A loop on the device (if the driver supports it), a launch for every pass, passes driven by the
// host.
const model::EngineOptions kDrivers[] = {{}, {.loop = false}, {.graph = false}};

class GpuDiffusion : public testing::TestWithParam<DiffusionCase> {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    auto make(DType type) const {
        return [of = GetParam(), type](int sequences, std::int64_t pool) {
            return engine_of(of, type, sequences, pool);
        };
    }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuDiffusion, testing::ValuesIn(test::kDiffusionCases),
                         [](const auto& info) { return info.param.name; });
class GpuDiffusionTogether : public GpuDiffusion {};
INSTANTIATE_TEST_SUITE_P(Models, GpuDiffusionTogether, testing::ValuesIn(test::together_cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GpuDiffusion, EveryStrategyIsThatOfAPlainDecoder) {
    // Up to 64 tokens all have the decode form, in blocks and as a whole: the same bits.
    for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(dtype_name(type));
        test::every_strategy_is_that_of_a_plain_decoder(GetParam(), make(type), 64);
    }
}

TEST_P(GpuDiffusionTogether, CommittingWithTheNextBlockIsCommittingApart) {
    test::committing_with_the_next_block_is_committing_apart(GetParam(), make(DType::bf16));
}

TEST_P(GpuDiffusion, TextsHaveTheBitsTheyHaveAlone) {
    test::texts_have_the_bits_they_have_alone(GetParam(), make(DType::bf16));
}

TEST_P(GpuDiffusion, GuessesOnTheHostAreTheEngines) {
    test::guesses_on_the_host_are_the_engines(GetParam(), make(DType::bf16));
}

// Passes of hundreds of rows: tiled GEMMs, attention with one block per sequence. Alone, a text
// uses the kernels for few rows.
TEST(GpuDiffusionMany, TextsHaveTheBitsTheyHaveAlone) {
    MR_NEED_GPU();
    constexpr int kTexts = 80, kBlock = 8;
    model::ModelSpec spec = test::diffusion_spec({"many", kBlock, 0, false});
    spec.dim = 256;
    spec.head_dim = spec.rope.rotary = 64;
    spec.hidden = 512;
    spec.validate("many");
    const test::OnDevice model =
        test::to_device(model::deferred_random_model(spec, DType::bf16, 11));
    model::EngineOptions options;
    options.context = 300;
    options.max_batch = 2048;
    options.max_sequences = kTexts;
    const auto many = model.engine(options);
    options.max_sequences = 1;
    const auto alone = model.engine(options);
    Scheduler scheduler(*many);
    std::vector<Scheduler::Id> ids;
    const auto prompt = [](int i) { return test::some_tokens(1 + i * 7 % 90, i, 95); };
    const auto wanted = [](int i) {
        const auto seed = static_cast<std::uint64_t>(i);
        return i % 3 ? test::filling_unfiltered({.steps = 4}, 20 + i % 9, seed)
                     : test::filling({.steps = 4}, 20 + i % 9, seed);
    };
    for (int i = 0; i < kTexts; ++i) ids.push_back(scheduler.add(prompt(i), wanted(i)));
    while (scheduler.step()) {
    }
    for (int i = 0; i < kTexts; ++i) {
        SCOPED_TRACE(i);
        const std::optional<Generated> got = scheduler.take(ids[static_cast<std::size_t>(i)]);
        ASSERT_TRUE(got);
        EXPECT_EQ(got->ids, test::filled(*alone, prompt(i), wanted(i)).ids);
    }
}

// Texts in step with each other: their passes have few shapes, and each repeated shape is one
// launch. Tokens and ledger equal those of kernels launched one by one.
TEST(GpuDiffusionMany, AShapeThatComesAgainIsOneLaunch) {
    MR_NEED_GPU();
    constexpr int kTexts = 6, kBlock = 8;
    const model::ModelSpec spec = test::diffusion_spec({"together", kBlock, 0, false});
    const test::OnDevice model =
        test::to_device(model::deferred_random_model(spec, DType::bf16, 11));
    std::vector<std::vector<std::int32_t>> tokens[2];
    Ledger ledgers[2];
    for (const bool graph : {true, false}) {
        model::EngineOptions options{.max_sequences = kTexts, .graph = graph};
        const auto engine = model.engine(options);
        const Ledger before = engine->ledger();
        Scheduler scheduler(*engine);
        std::vector<Scheduler::Id> ids;
        for (int i = 0; i < kTexts; ++i) {
            const auto seed = static_cast<std::uint64_t>(i);
            ids.push_back(
                scheduler.add(test::some_tokens(2 * kBlock, i, 95),
                              i % 2 ? test::filling({.steps = 4}, 4 * kBlock, seed)
                                    : test::filling_unfiltered({.steps = 4}, 4 * kBlock, seed)));
        }
        while (scheduler.step()) {
        }
        for (const Scheduler::Id id : ids) tokens[graph].push_back(scheduler.take(id)->ids);
        ledgers[graph] = engine->ledger().since(before);
        const auto& device = dynamic_cast<const model::Resident&>(*engine);
        if (graph) {
            EXPECT_GE(device.captured_passes(), 8u);  // of 16, with two shapes
        } else {
            EXPECT_EQ(device.captured_passes(), 0u);
        }
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    for (const OpKind kind : {OpKind::linear, OpKind::lm_head, OpKind::sample, OpKind::embedding}) {
        EXPECT_EQ(ledgers[0].op(kind).bytes(), ledgers[1].op(kind).bytes()) << op_name(kind);
        EXPECT_EQ(ledgers[0].op(kind).flops, ledgers[1].op(kind).flops) << op_name(kind);
    }
}

// A loop on the device, a launch for every pass, and passes driven by the host.
TEST_P(GpuDiffusion, WhoDrivesThePassesChangesNothing) {
    const DiffusionCase& of = GetParam();
    if (!cuda::LoopGraph::possible()) GTEST_SKIP() << "the driver has no loops";
    const auto loop = engine_of(of, DType::bf16, 1, 0);
    const auto launches = engine_of(of, DType::bf16, 1, 0, {.loop = false});
    const auto host = engine_of(of, DType::bf16, 1, 0, {.graph = false});
    const int block = test::block_of(of);
    std::uint64_t seed = 0;
    int in_form[2] = {};  // texts whose prompt and answer have the prompt form; the decode form
    for (const ops::DenoiseParams& denoise : test::denoise_cases(block)) {
        for (const int tokens : {1, block, 3 * block + 2, 90}) {
            const auto prompt = test::some_tokens(1 + static_cast<int>(seed * 13 % 100), 5, 95);
            GenerateOptions options = seed % 2 ? test::filling(denoise, tokens, seed)
                                               : test::filling_unfiltered(denoise, tokens, seed);
            ++seed;
            ++in_form[static_cast<int>(model::form_of_prompt(std::ssize(prompt) + tokens))];
            for (const bool prefix_cache : {false, true}) {
                if (prefix_cache && of.block > 0) continue;
                options.diffusion.prefix_cache = prefix_cache;
                SCOPED_TRACE(std::string(ops::remask_name(denoise.remask)) + ", steps " +
                             std::to_string(denoise.steps) + ", prompt " +
                             std::to_string(prompt.size()) + ", tokens " + std::to_string(tokens) +
                             (prefix_cache ? ", prefix cache" : ""));
                const Generated want = test::filled(*host, prompt, options);
                for (const auto* engine : {&loop, &launches}) {
                    const Generated got = test::filled(**engine, prompt, options);
                    EXPECT_EQ(got.ids, want.ids);
                    EXPECT_EQ(got.passes, want.passes);
                    engine->get()->cache().check_books();
                }
            }
        }
    }
    EXPECT_GE(std::min(in_form[0], in_form[1]), 8);
    // The device drove the passes.
    for (const auto* engine : {&loop, &launches}) {
        EXPECT_GT(dynamic_cast<const model::Resident&>(**engine).captured_fills(), 0u);
    }
}

// A head that gives records instead of logits changes no token, whatever drives the passes, and the
// ledger shows the difference.
TEST_P(GpuDiffusion, RecordsOfTheHeadChangeNoToken) {
    const DiffusionCase& of = GetParam();
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    for (const DType type : {DType::bf16, DType::f16, DType::q8_0}) {
        for (const model::EngineOptions& driver : kDrivers) {
            // The first engine gets the device's turn (cuda::DeviceTurn).
            const auto engine = engine_of(of, type, 1, 0, driver);
            const auto logits = engine_of(of, type, 1, 0, {.graph = false, .head_records = false});
            const Ledger before = logits->ledger();
            std::uint64_t seed = 0;
            for (const ops::DenoiseParams& denoise : test::denoise_cases(block)) {
                SCOPED_TRACE(std::string(dtype_name(type)) + ", " +
                             ops::remask_name(denoise.remask) + ", seed " + std::to_string(seed));
                const auto prompt = test::some_tokens(1 + static_cast<int>(seed * 7 % 40), 5, 95);
                const GenerateOptions options =
                    test::filling_unfiltered(denoise, 2 * block + 3, seed++);
                const Generated want = test::filled(*logits, prompt, options);
                const Generated got = test::filled(*engine, prompt, options);
                EXPECT_EQ(got.ids, want.ids);
                EXPECT_EQ(got.passes, want.passes);
            }
            // The host only asks for rows of unknown places, as with logits.
            const DType head = type == DType::q8_0 ? DType::q8_0x8 : type;
            if (driver.graph || !cuda::linear_records_takes(engine->context(), head, 64)) continue;
            const auto written = [](const Ledger& ledger) {
                return ledger.op(OpKind::lm_head).bytes_written;
            };
            EXPECT_EQ(written(engine->ledger()) * 96 * sizeof(float),
                      written(logits->ledger().since(before)) * 6 * sizeof(ops::TileRecord));
        }
    }
}

// A vocabulary whose rows several thread blocks share, blocks of other lengths than the model's on
// one engine, and texts whose last block commits together with its neighbour while others do not.
TEST(GpuDiffusionLoop, IsTheHostsWhateverTheModel) {
    MR_NEED_GPU();
    if (!cuda::LoopGraph::possible()) GTEST_SKIP() << "the driver has no loops";
    model::ModelSpec spec = test::diffusion_spec({"large", 40, 0, false});
    spec.vocab = 9001;
    const test::OnDevice model =
        test::to_device(model::deferred_random_model(spec, DType::bf16, 11));
    model::EngineOptions options;
    options.context = 300;
    options.max_batch = options.max_logits = 320;
    options.block = 64;
    const auto loop = model.engine(options);
    options.graph = false;
    const auto host = model.engine(options);
    std::uint64_t seed = 0;
    for (const int block : {40, 4, 33, 64, 16}) {
        for (const int tokens : {50, 130}) {
            SCOPED_TRACE(std::to_string(block) + ", tokens " + std::to_string(tokens));
            const auto prompt = test::some_tokens(1 + static_cast<int>(seed * 29 % 70), 5, 95);
            GenerateOptions wanted = test::filling({.steps = std::min(block, 8)}, tokens, seed++);
            wanted.diffusion.block = block;
            const Generated want = test::filled(*host, prompt, wanted);
            const Generated got = test::filled(*loop, prompt, wanted);
            EXPECT_EQ(got.ids, want.ids);
            EXPECT_EQ(got.passes, want.passes);
        }
    }
}

// The same with full attention: layers whose norms are fused into GEMMs (no norms of q and k),
// weight types that the prompt form multiplies in its own way, and so many rows and heads that the
// attention kernel counts its tiles, with a counter that belongs to the graph.
TEST(GpuDiffusionLoop, WholeTextsAreTheHostsWhateverTheModel) {
    MR_NEED_GPU();
    if (!cuda::LoopGraph::possible()) GTEST_SKIP() << "the driver has no loops";
    for (const bool shifted : {false, true}) {
        model::ModelSpec spec = test::diffusion_spec({"large", 0, 0, shifted});
        spec.vocab = 9001;
        spec.heads = 64;
        spec.kv_heads = 8;
        spec.context = 700;
        spec.qk_norm = false;
        spec.qkv_bias = shifted;  // as Dream has it
        spec.validate("large");
        for (const DType type : {DType::f32, DType::bf16, DType::q8_0}) {
            const test::OnDevice model =
                test::to_device(model::deferred_random_model(spec, type, 11));
            model::EngineOptions options;
            options.block = 64;
            const auto loop = model.engine(options);
            options.graph = false;
            const auto host = model.engine(options);
            std::uint64_t seed = 0;
            for (const int block : {64, 5}) {
                for (const int tokens : {70, 13}) {
                    for (const bool prefix_cache : {false, true}) {
                        const auto prompt = test::some_tokens(tokens == 13 ? 30 : 600, 5, 95);
                        GenerateOptions wanted =
                            test::filling({.steps = std::min(block, 4)}, tokens, seed++);
                        wanted.diffusion.block = block;
                        wanted.diffusion.prefix_cache = prefix_cache;
                        SCOPED_TRACE(std::string(dtype_name(type)) + ", block " +
                                     std::to_string(block) + ", tokens " + std::to_string(tokens) +
                                     (shifted ? ", shifted" : "") +
                                     (prefix_cache ? ", prefix cache" : ""));
                        const Generated want = test::filled(*host, prompt, wanted);
                        const Generated got = test::filled(*loop, prompt, wanted);
                        EXPECT_EQ(got.ids, want.ids);
                        EXPECT_EQ(got.passes, want.passes);
                    }
                }
            }
        }
    }
}

// Counters that no graph holds. The driver frees those of destroyed graphs on its own
// thread.
int spare_counters() {
    int now = cuda::flash::spare_counters(), before = -1;
    while (now != before) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        before = std::exchange(now, cuda::flash::spare_counters());
    }
    return now;
}

// A graph has its own counters for as long as it can run, including those in its loop, and frees
// them.
TEST(GpuDiffusionLoop, GraphsKeepTheCountersOfTheirAttention) {
    MR_NEED_GPU();
    if (!cuda::LoopGraph::possible()) GTEST_SKIP() << "the driver has no loops";
    if (cuda::this_gpu().sm != 90) GTEST_SKIP() << "the kernel with counters is sm_90's";
    model::ModelSpec spec = test::diffusion_spec({"counted", 0, 0, false});
    spec.heads = 64;
    spec.kv_heads = 8;
    spec.context = 700;
    spec.validate("counted");
    const test::OnDevice model =
        test::to_device(model::deferred_random_model(spec, DType::bf16, 11));
    const auto prompt = test::some_tokens(600, 5, 95);
    const int before = spare_counters();
    for (const bool in_loop : {true, false}) {
        SCOPED_TRACE(in_loop ? "loop" : "launches");
        {
            const auto engine = model.engine({.loop = in_loop});
            test::filled(*engine, prompt, test::filling({.steps = 4}, 64));
            ASSERT_EQ(dynamic_cast<const model::Resident&>(*engine).captured_fills(), 1u);
            // For every layer, in the first pass and in the later ones.
            EXPECT_EQ(spare_counters(), before - 2 * spec.layers);
        }
        EXPECT_EQ(spare_counters(), before);
    }
}

// The state of a block has room for 64 places. Longer blocks use the host's passes.
TEST(GpuDiffusionLoop, LongBlocksAreTheHosts) {
    MR_NEED_GPU();
    const DiffusionCase of{"full", 0, 0, false};
    const auto engine = engine_of(of, DType::bf16, 1, 0, {.block = 80});
    const ops::SampleParams sampling{.temperature = 1, .seed = 3};
    const auto prompt = test::some_tokens(20, 5, 95);
    for (const int block : {64, 65, 80}) {
        SCOPED_TRACE(block);
        const OpenSequence open(engine->cache());
        DiffusionOptions options;
        options.block = block;
        const BlockText text(engine->model().spec, options, sampling, prompt, 100);
        const std::optional<model::OpenBlock> first = text.open(engine->cache(), open.id());
        ASSERT_TRUE(first);
        EXPECT_EQ(engine->takes_block(*first), block <= 64);
    }
    GenerateOptions options = test::filling({.steps = 4}, 100);
    options.diffusion.block = 80;
    EXPECT_EQ(std::ssize(test::filled(*engine, prompt, options).ids), 100);
    EXPECT_EQ(dynamic_cast<const model::Resident&>(*engine).captured_fills(), 0u);
}

// Texts whose last blocks have more lengths than graphs are kept. Graphs of the first texts have
// been evicted when they come again.
class GpuDiffusionGraphs : public GpuDiffusion {};
INSTANTIATE_TEST_SUITE_P(Models, GpuDiffusionGraphs,
                         testing::Values(DiffusionCase{"aligned64", 64, 0, false},
                                         DiffusionCase{"full", 0, 0, false}),
                         [](const auto& info) { return info.param.name; });
TEST_P(GpuDiffusionGraphs, ThatGaveWayAreCapturedAgain) {
    const DiffusionCase& of = GetParam();
    constexpr auto kMost = static_cast<int>(model::Resident::kMostFills);
    static_assert(kMost + 4 < 64);
    const auto host = engine_of(of, DType::bf16, 1, 0, {.graph = false});
    for (const bool loop : {true, false}) {
        const auto engine = engine_of(of, DType::bf16, 1, 0, {.loop = loop});
        const auto& device = dynamic_cast<const model::Resident&>(*engine);
        for (const int round : {0, 1}) {
            for (int last = 1; last <= kMost + 4; ++last) {
                SCOPED_TRACE(std::to_string(last) + ", round " + std::to_string(round));
                const auto prompt = test::some_tokens(64, last, 95);
                const GenerateOptions options = test::filling(
                    {.steps = 4}, 64 + last, static_cast<std::uint64_t>(last + round));
                const Generated want = test::filled(*host, prompt, options);
                const Generated got = test::filled(*engine, prompt, options);
                EXPECT_EQ(got.ids, want.ids);
                EXPECT_EQ(got.passes, want.passes);
                EXPECT_LE(device.captured_fills(), model::Resident::kMostFills);
            }
        }
        EXPECT_EQ(device.captured_fills(), model::Resident::kMostFills);
    }
}

// The model on the device, and a factory of engines for it.
auto engines_with(const model::EngineOptions& options) {
    return [options](model::Model model) {
        auto shared = std::make_shared<const test::OnDevice>(test::to_device(std::move(model)));
        return [shared, options](int sequences) {
            return shared->engine(test::with_room(options, sequences));
        };
    };
}
// The kernel that settles guesses ends the loop, and the error equals that of the host's passes.
TEST_P(GpuDiffusion, ARowThatIsNotFiniteEndsItsTextAlone) {
    const std::string on_cpu = test::a_row_that_is_not_finite_ends_its_text_alone(
        GetParam(), DType::f32, test::engines_on_cpu);
    EXPECT_NE(on_cpu, "");
    for (const model::EngineOptions& driver : kDrivers) {
        SCOPED_TRACE(driver.loop ? driver.graph ? "loop" : "host" : "launches");
        EXPECT_EQ(test::a_row_that_is_not_finite_ends_its_text_alone(GetParam(), DType::bf16,
                                                                     engines_with(driver)),
                  on_cpu);
    }
}

TEST_P(GpuDiffusion, ATextThatEndsInsideOfABlockLeavesNothingBehind) {
    for (const model::EngineOptions& driver : kDrivers) {
        SCOPED_TRACE(driver.loop ? driver.graph ? "loop" : "host" : "launches");
        test::a_text_that_ends_inside_of_a_block_leaves_nothing_behind(GetParam(), DType::bf16,
                                                                       engines_with(driver));
    }
}

// The device drives the blocks of a single text, the host the passes of several, and each continues
// where the other stopped.
TEST_P(GpuDiffusion, TextsComeAndGoBesideOne) {
    const DiffusionCase& of = GetParam();
    for (const auto& [sequences, prefix_cache] :
         {std::pair{1, false}, {2, false}, {1, true}, {2, true}}) {
        if (prefix_cache && of.block > 0) continue;
        std::uint64_t sent[std::size(kDrivers)] = {};
        for (std::size_t i = 0; i < std::size(kDrivers); ++i) {
            SCOPED_TRACE(std::to_string(sequences) + " sequences, driver " + std::to_string(i) +
                         (prefix_cache ? ", prefix cache" : ""));
            const auto engine = engine_of(of, DType::bf16, sequences, 0, kDrivers[i]);
            const auto alone = engine_of(of, DType::bf16, 1, 0, kDrivers[i]);
            test::texts_come_and_go_beside_one(of, *engine, *alone, prefix_cache);
            sent[i] = engine->ledger().host_to_device().calls;
        }
        // The device had its turns: its blocks send nothing once a text is open.
        EXPECT_LT(sent[0], sent[2]);
        EXPECT_EQ(sent[0], sent[1]);
    }
}

// The layers' GEMMs equal those of the host's passes, and no byte goes to the device once a text is
// open.
TEST_P(GpuDiffusion, ABlockSendsNothingToTheDevice) {
    const DiffusionCase& of = GetParam();
    const auto engine = engine_of(of, DType::bf16, 1, 0);
    const auto host = engine_of(of, DType::bf16, 1, 0, {.graph = false});
    const ops::SampleParams sampling{.temperature = 1, .seed = 3};
    struct Text {
        int block, prompt, tokens;
        bool prefix_cache;
    };
    std::vector<Text> texts{{0, 1, 3 * of.block, false}};  // no prefix, nothing before a block
    if (of.block == 0) {  // of both forms, and with a shorter last block
        texts = {{8, 5, 30, false}, {8, 5, 30, true}, {0, 40, 100, false}, {0, 40, 100, true}};
    }
    for (const auto& [block, prompt_tokens, tokens, prefix_cache] : texts) {
        SCOPED_TRACE(std::to_string(tokens) + (prefix_cache ? ", prefix cache" : ""));
        const OpenSequence open(engine->cache()), on_host(host->cache());
        DiffusionOptions options;
        options.block = block;
        options.prefix_cache = prefix_cache;
        options.denoise.remask = ops::Remask::fixed;
        const auto prompt = test::some_tokens(prompt_tokens, 5, 95);
        BlockText text(engine->model().spec, options, sampling, prompt, tokens);
        BlockText want(engine->model().spec, options, sampling, prompt, tokens);
        ASSERT_EQ(text.prefix(), 0);
        const std::optional<model::OpenBlock> first = text.open(engine->cache(), open.id());
        ASSERT_TRUE(first && engine->takes_block(*first));
        engine->open_block(*first);
        for (bool more = true; more; more = text.open_next() && want.open_next()) {
            const Ledger before = engine->ledger(), host_before = host->ledger();
            const std::int64_t passes = want.passes();
            text.take(engine->fill_block());
            while (!want.filled()) {
                const model::BatchItem item = want.next(host->cache(), on_host.id());
                std::vector<ops::Guess> guesses(want.places().size());
                host->submit({&item, 1}, want.places(), guesses);
                want.take(guesses);
            }
            const Ledger used = engine->ledger().since(before);
            const Ledger host_used = host->ledger().since(host_before);
            EXPECT_EQ(used.host_to_device().bytes, 0u);
            // Its ids, including the prompt's, and one number per pass.
            const bool with_prompt = of.block > 0 && passes == 0;
            const std::size_t places = text.block().size() + (with_prompt ? prompt.size() : 0);
            EXPECT_EQ(used.device_to_host().bytes,
                      4 * places + 8 * static_cast<std::uint64_t>(want.passes() - passes));
            for (const OpKind kind : {OpKind::linear, OpKind::attention}) {
                // Captured for an upper bound of the keys if attention is block-causal.
                if (kind == OpKind::attention && of.block > 0) continue;
                EXPECT_EQ(used.op(kind).bytes_read, host_used.op(kind).bytes_read);
                EXPECT_EQ(used.op(kind).flops, host_used.op(kind).flops);
                EXPECT_EQ(used.op(kind).calls, host_used.op(kind).calls);
            }
            EXPECT_EQ(engine->cache().length(open.id()), host->cache().length(on_host.id()));
            EXPECT_EQ(std::vector(text.block().begin(), text.block().end()),
                      std::vector(want.block().begin(), want.block().end()));
        }
        EXPECT_EQ(text.passes(), want.passes());
        EXPECT_EQ(text.open_next(), want.open_next());
    }
}

TEST_P(GpuDiffusion, LikelihoodsAreThoseOfTheCpu) {
    const DiffusionCase& of = GetParam();
    const auto gpu = engine_of(of, DType::f32, 1, 0);
    model::EngineOptions options;
    options.context = 300;
    options.max_batch = options.max_logits = 320;
    const auto cpu = model::make_engine(test::diffusion_model(of), options);
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    DiffusionEvalOptions how{{}, 4};
    how.decoder.denoise.remask = ops::Remask::sequential;  // near ties do not change the order
    const auto text = test::some_tokens(4 * block, 9, 95);
    EXPECT_NEAR(replayed_nats(*gpu, how.decoder, text, 1),
                replayed_nats(*cpu, how.decoder, text, 1), 1e-2);
    EXPECT_NEAR(masked_nats(*gpu, how, text, 1), masked_nats(*cpu, how, text, 1), 1e-2);
}

}  // namespace
}  // namespace mr::decode
