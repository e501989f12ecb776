#include "decode/measure.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/error.h"
#include "model/model.h"

namespace mr::decode {
namespace {

TEST(Measure, CountsAndLedgerAreThoseOfOneRepetition) {
    const auto model =
        std::make_shared<model::Model>(model::load_model(MR_SOURCE_DIR "/tests/reference/llama2"));
    model::EngineOptions options;
    options.context = 64;
    options.threads = 1;
    const std::unique_ptr<model::Engine> opened = model::make_engine(model, options);
    model::Engine& engine = *opened;
    const MeasureOptions wanted{.prompt = 16, .steps = 8, .repetitions = 2, .warmup = 1};

    const Measured decode = measure_decode(engine, wanted);
    EXPECT_EQ(decode.seconds.size(), 2u);
    EXPECT_EQ(decode.tokens, 8);
    EXPECT_EQ(decode.ledger.op(OpKind::embedding).calls, 8u);
    EXPECT_LE(decode.best_seconds(), decode.median_seconds());
    EXPECT_GT(decode.read_bandwidth, 0);
    // A token reads every weight once, plus its part of the cache.
    EXPECT_GE(decode.bytes_per_token(), static_cast<double>(model->weights.bytes_per_token()));

    const Measured prefill = measure_prefill(engine, wanted);
    EXPECT_EQ(prefill.tokens, 16);
    EXPECT_EQ(prefill.ledger.op(OpKind::embedding).calls, 1u);
    EXPECT_GT(prefill.flops_per_second(), 0);
    // Sixteen tokens share one reading of the weights.
    EXPECT_LT(prefill.bytes_per_token(), decode.bytes_per_token());

    EXPECT_THROW(measure_decode(engine, {.prompt = 60, .steps = 8}), Error);
    EXPECT_EQ(engine.cache().free_tokens(), 64);  // nothing stays open
}

}  // namespace
}  // namespace mr::decode
