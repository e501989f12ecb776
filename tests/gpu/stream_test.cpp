// Streaming sequences on a GPU: the CPU's results, for any pieces and neighbours, in rings of pages
// without a byte from the host.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "decode/scheduler_cases.h"
#include "families.h"
#include "gpu/engines.h"
#include "model/io/random.h"
#include "support.h"

namespace mr::decode::stream_test {
namespace {

using model::Stream;
using Text = std::vector<std::int32_t>;

constexpr int kVocab = 2000;

Text text_of(int count, int vocab, int seed = 0) {
    Text out;
    for (std::int64_t i = 0; i < count; ++i) {
        out.push_back(static_cast<std::int32_t>((i * 7919 + i / 7 * 31 + 17 * seed) % vocab));
    }
    return out;
}

model::EngineOptions options_of(const Stream& stream, int sequences, std::int64_t context = 512) {
    model::EngineOptions options;
    options.context = context;
    options.max_sequences = sequences;
    options.max_batch = 192;
    options.max_logits = 192;
    options.stream = stream;
    return options;
}

// The logits of all tokens; the text is fed in pieces of these sizes, the last size
// repeated.
std::vector<float> logits_of(model::Engine& engine, const Stream& stream, const Text& text,
                             std::vector<int> pieces, model::Form form) {
    const model::SeqId seq = engine.cache().open();
    engine.cache().set_stream(seq, stream);
    EXPECT_TRUE(engine.try_reserve(seq, 0, stream ? 1 << 20 : 512));
    std::vector<float> out;
    std::size_t at = 0, piece = 0;
    while (at < text.size()) {
        const std::size_t count =
            std::min(static_cast<std::size_t>(pieces[piece]), text.size() - at);
        if (piece + 1 < pieces.size()) ++piece;
        const model::BatchItem item{.seq = seq,
                                    .tokens = std::span(text).subspan(at, count),
                                    .logits = model::BatchItem::Logits::all,
                                    .form = form};
        const std::vector<float> some = test::values(engine, engine.submit({&item, 1}));
        out.insert(out.end(), some.begin(), some.end());
        at += count;
        engine.cache().check_books();
    }
    engine.cache().close(seq);
    return out;
}

class GpuStreamFamilies : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

// Windows that are not multiples of a page, some smaller than a piece; sinks from none to two
// pages.
TEST_P(GpuStreamFamilies, AreTheCpus) {
    const std::string source = test::reference(GetParam());
    const test::OnDevice on_device = test::load_on_device(source);
    const auto on_host = std::make_shared<const model::Model>(model::load_model(source));
    const Text text = text_of(420, on_host->spec.vocab);
    // 16-bit weights: the GPU computes in that type.
    const double near = on_host->weights.layers.front().o.dtype == DType::f32 ? 0.002 : 0.02;
    for (const Stream stream : {Stream{4, 28}, Stream{0, 12}, Stream{33, 45}, Stream{40, 150}}) {
        SCOPED_TRACE(std::to_string(stream.sinks) + " " + std::to_string(stream.window));
        model::EngineOptions options = options_of(stream, 2);
        options.kv_type = DType::f32;
        const auto cpu = model::make_engine(on_host, options);
        const std::vector<float> expected =
            logits_of(*cpu, stream, text, {192}, model::Form::prompt);
        const auto gpu = on_device.engine(options);
        for (const auto& pieces : {std::vector<int>{192}, std::vector<int>{64, 128}}) {
            EXPECT_LT(test::relative_rms(logits_of(*gpu, stream, text, pieces, model::Form::prompt),
                                         expected),
                      near);
        }
        const auto decoded = [&](std::vector<int> pieces) {
            return logits_of(*gpu, stream, text, std::move(pieces), model::Form::decode);
        };
        const std::vector<float> one = decoded({1});
        EXPECT_LT(test::relative_rms(one, expected), near);
        EXPECT_EQ(decoded({64}), one);
        EXPECT_EQ(decoded({3, 17, 1, 40}), one);
    }
}
INSTANTIATE_TEST_SUITE_P(Rotary, GpuStreamFamilies,
                         testing::Values("llama2", "llama3", "llama-linear", "llama-yarn",
                                         "mistral", "qwen2", "qwen2-yarn", "qwen2-window", "qwen3",
                                         "gpt-neox", "gpt-neox-seq"),
                         test::family_name);

class GpuStreams : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

// Its attention runs on tensor cores.
model::ModelSpec shape_of(const char* name) { return test::small_shape(name, kVocab); }

TEST_F(GpuStreams, SixteenBitsAreNearTheCpu) {
    for (const char* name : {"stories-42m", "llama-3-8b", "pythia-2.8b"}) {
        for (const DType type : {DType::bf16, DType::f16}) {
            SCOPED_TRACE(std::string(name) + " " + dtype_name(type));
            const model::ModelSpec spec = shape_of(name);
            const auto on_host =
                std::make_shared<const model::Model>(model::random_model(spec, type, 11));
            const test::OnDevice on_device = test::to_device(model::random_model(spec, type, 11));
            const Text text = text_of(700, kVocab);
            for (const Stream stream : {Stream{4, 60}, Stream{0, 75}, Stream{70, 300}}) {
                SCOPED_TRACE(std::to_string(stream.sinks) + " " + std::to_string(stream.window));
                const auto cpu = model::make_engine(on_host, options_of(stream, 2));
                const std::vector<float> expected =
                    logits_of(*cpu, stream, text, {192}, model::Form::prompt);
                const auto gpu = on_device.engine(options_of(stream, 2));
                const std::vector<float> prompt =
                    logits_of(*gpu, stream, text, {192}, model::Form::prompt);
                EXPECT_LT(test::relative_rms(prompt, expected), 0.02);
                EXPECT_EQ(logits_of(*gpu, stream, text, {64, 128}, model::Form::prompt), prompt);
                const std::vector<float> one =
                    logits_of(*gpu, stream, text, {1}, model::Form::decode);
                EXPECT_LT(test::relative_rms(one, expected), 0.02);
                EXPECT_EQ(logits_of(*gpu, stream, text, {64, 9}, model::Form::decode), one);
            }
        }
    }
}

// Requests with several kinds of streams, and without.
std::vector<test::Order> mixed_orders(int count, const Stream& most) {
    std::vector<test::Order> orders =
        test::random_orders(count, 9, kVocab, 300, 400, static_cast<int>(model::kCut));
    for (std::size_t i = 0; i < orders.size(); ++i) {
        if (i % 4 == 0) orders[i].options.stream = most;
        if (i % 4 == 1) orders[i].options.stream = {0, 70};
        if (i % 4 == 2) orders[i].options.stream = {most.sinks / 2, 33};
    }
    return orders;
}

// A single row uses the step in one kernel; many rows use others.
TEST_F(GpuStreams, ManyHaveTheBitsOfEachAlone) {
    const Stream most{37, 130};
    for (const char* name : {"stories-42m", "llama-3-8b", "pythia-2.8b"}) {
        // f32: without tensor cores, where nothing of a stream is shared.
        for (const DType type : {DType::bf16, DType::q8_0, DType::f32}) {
            SCOPED_TRACE(std::string(name) + " " + dtype_name(type));
            const test::OnDevice loaded =
                test::to_device(model::deferred_random_model(shape_of(name), type, 11));
            const std::vector<test::Order> orders = mixed_orders(60, most);
            model::EngineOptions whole = options_of(most, 1, 1024);
            whole.max_batch = 512;  // prompts are one pass
            const auto plain = loaded.engine(whole);
            for (const int sequences : {3, 24}) {
                model::EngineOptions options = options_of(most, sequences, 1024);
                options.graph = sequences > 3;
                options.pool = sequences * 700;
                const auto engine = loaded.engine(options);
                const std::vector<Generated> got = test::run_orders(*engine, orders);
                engine->cache().check_books();
                test::expect_as_plain(orders, got, *plain);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(GpuStreams, AStepSendsNothingAndHoldsNoMore) {
    const Stream stream{4, 90};
    const test::OnDevice loaded =
        test::to_device(model::deferred_random_model(shape_of("pythia-2.8b"), DType::bf16, 11));
    for (const int rows : {1, 20}) {
        const auto engine = loaded.engine(options_of(stream, rows));
        Scheduler scheduler(*engine);
        for (int i = 0; i < rows; ++i) {
            GenerateOptions options;
            options.max_tokens = 100000;
            options.ignore_end = true;
            options.stream = stream;
            scheduler.add(text_of(10 + i, kVocab, i), options);
        }
        for (int i = 0; i < 200; ++i) scheduler.step();
        const Ledger before = engine->ledger();
        const std::int64_t free = engine->cache().free_tokens();
        for (int i = 0; i < 3000; ++i) scheduler.step();
        const Ledger moved = engine->ledger().since(before);
        EXPECT_EQ(moved.host_to_device().bytes, 0u);
        EXPECT_EQ(engine->cache().free_tokens(), free);
        EXPECT_EQ(scheduler.running(), static_cast<std::size_t>(rows));
        engine->cache().check_books();
    }
}

// The device's memory after 10^4 tokens and after 10^6, most of them a prompt.
TEST_F(GpuStreams, MemoryStaysAsItIs) {
    const Stream stream{4, 252};
    const test::OnDevice loaded =
        test::to_device(model::deferred_random_model(shape_of("pythia-2.8b"), DType::bf16, 11));
    model::EngineOptions wanted = options_of(stream, 1);
    wanted.max_batch = 2048;
    const auto engine = loaded.engine(wanted);
    std::vector<std::size_t> free;
    for (const int tokens : {10000, 1000000}) {
        Scheduler scheduler(*engine);
        GenerateOptions options;
        options.max_tokens = 2000;
        options.ignore_end = true;
        options.stream = stream;
        const Scheduler::Id id = scheduler.add(text_of(tokens, kVocab), options);
        while (scheduler.step()) {
        }
        const Generated made = *scheduler.take(id);
        EXPECT_EQ(made.ids.size(), 2000u);
        EXPECT_EQ(made.evicted, tokens + 2000 - 1 - 256);
        free.push_back(cuda::require_device().free_bytes);
    }
    EXPECT_EQ(free[0], free[1]);
}

}  // namespace
}  // namespace mr::decode::stream_test
