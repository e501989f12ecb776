// The plan of an engine with streaming sequences: sinks, window and a piece of a prompt for each,
// independent of the model's context.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/device_buffers.h"
#include "model/cuda/device_engine.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::model::stream_plan_test {
namespace {

constexpr std::int64_t kPage = KvCache::kPageTokens;

Model model_of(int context) {
    ModelSpec spec = random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.dim = 64;
    spec.hidden = 96;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = spec.rope.rotary = 32;
    spec.vocab = 300;
    spec.context = context;
    return deferred_random_model(spec, DType::bf16, 1);
}

EngineOptions streaming(bool cuda, int sequences, Stream stream = {4, 252}) {
    EngineOptions options;
    options.cuda = cuda;
    options.threads = 1;
    options.max_sequences = sequences;
    options.max_batch = 256;
    options.stream = stream;
    return options;
}

std::uint64_t bytes_of(const MemoryPlan& plan, const std::string& name) {
    for (const MemoryPlan::Item& item : plan.items()) {
        if (item.name == name) return item.bytes;
    }
    ADD_FAILURE() << "no " << name;
    return 0;
}

// Without a GPU, plans lack the sizes that only kernels know.
bool plans_are_whole() { return !cuda::built() || cuda::device(); }

TEST(StreamPlan, ThePoolIsThatOfTheWindow) {
    // 252 - 1 + 256 positions starting anywhere in a page need 17 pages; the sinks one more.
    const std::int64_t each = (17 + 1) * kPage;
    for (const bool cuda : {false, true}) {
        for (const int sequences : {1, 3}) {
            SCOPED_TRACE(std::to_string(cuda) + " " + std::to_string(sequences));
            const EngineOptions wanted = streaming(cuda, sequences);
            const Model model = model_of(8192);
            const EngineOptions options = with_defaults(model, wanted, 0);
            EXPECT_EQ(options.pool, sequences * each);
            EXPECT_EQ(options.context, each);
            EXPECT_EQ(options.max_batch, 256);
            if (cuda && !plans_are_whole()) continue;
            // Plus a page that each may leave partly empty, and on a GPU one for idle rows.
            const std::int64_t pages = options.pool / kPage + sequences - 1 + cuda;
            EXPECT_EQ(bytes_of(plan_engine(model, wanted), "KV cache"),
                      KvCache::bytes(model.spec, pages, *options.kv_type));
        }
    }
}

// A streaming text is longer than its model's context, and is cut at multiples of kCut there.
TEST(StreamPlan, APassTakesAPieceOfAPromptWhateverTheContext) {
    EngineOptions wanted = streaming(true, 1, {2, 20});
    wanted.context = 32;
    EXPECT_GE(with_defaults(model_of(32), wanted, 0).max_batch, kCut);
    wanted.context = 0;
    EXPECT_GE(with_defaults(model_of(32), wanted, 0).max_batch, kCut);
}

TEST(StreamPlan, NothingFollowsTheContext) {
    for (const bool cuda : {false, true}) {
        if (cuda && !plans_are_whole()) continue;
        for (const int sequences : {1, 16}) {
            SCOPED_TRACE(std::to_string(cuda) + " " + std::to_string(sequences));
            const EngineOptions wanted = streaming(cuda, sequences);
            const std::uint64_t total = plan_engine(model_of(8192), wanted).total();
            EXPECT_EQ(plan_engine(model_of(131072), wanted).total(), total);
            const EngineOptions wider = streaming(cuda, sequences, {4, 1020});
            EXPECT_GT(plan_engine(model_of(8192), wider).total(), total);
            // An engine that also takes texts of the whole context must be asked for that.
            EngineOptions both = wanted;
            both.context = 8192;
            EXPECT_EQ(with_defaults(model_of(8192), both, 0).pool, 8192 * sequences);
        }
    }
}

// Passes in the decode form have fewer rows if a row sees many keys, not if a text is long.
TEST(StreamPlan, RowsOfADevicesPassFollowTheWindow) {
    const auto rows = [](int context, const Stream& stream) {
        return decode_rows(with_defaults(model_of(context), streaming(true, 16, stream), 0));
    };
    EXPECT_EQ(rows(8192, {4, 252}), 256);
    EXPECT_EQ(rows(131072, {4, 252}), 256);
    EXPECT_EQ(rows(131072, {4, 20000}), 64);
    EXPECT_EQ(rows(1024, {4, 20000}), 64);  // a window longer than the model's context
}

// Blocks are rows of every pass: as many as attention's partial results leave room for, if larger
// GEMMs are faster.
TEST(StreamPlan, RowsOfADevicesPassAreMoreWithBlocks) {
    const auto rows = [](int context, int block, DType type = DType::bf16, int sequences = 64) {
        Model model = model_of(context);
        if (block >= 0) {
            ModelSpec spec = model.spec;
            set_diffusion(spec, {.mask = 299, .block = block});
            model = deferred_random_model(spec, type, 1);
        }
        EngineOptions options;
        options.cuda = true;
        options.max_sequences = sequences;
        options.max_batch = 2048;
        options.pool = std::int64_t{context} * sequences;
        return decode_rows(with_defaults(model, options, 0));
    };
    EXPECT_EQ(rows(1024, 4), 1024);
    EXPECT_EQ(rows(2048, 4), 1024);
    EXPECT_EQ(rows(2304, 4), 768);
    EXPECT_EQ(rows(4096, 4), 512);
    EXPECT_EQ(rows(8192, 4), 256);
    EXPECT_EQ(rows(8224, 4), 64);
    EXPECT_EQ(rows(2048, 4, DType::bf16, 2), 128);
    EXPECT_EQ(rows(2048, 4, DType::q8_0), 256);
    EXPECT_EQ(rows(2048, 0), 256);   // full attention
    EXPECT_EQ(rows(2048, -1), 256);  // autoregressive
}

// Also the rings of a repetition penalty.
TEST(StreamPlan, APenaltySeesWhatATokenSees) {
    const auto recent = [](int context, const Stream& stream) {
        return most_recent(with_defaults(model_of(context), streaming(true, 1, stream), 0));
    };
    EXPECT_GE(recent(1024, {4, 20000}), 20004);
    EXPECT_LT(recent(131072, {4, 252}), 1024);
    EXPECT_GE(recent(32, {4, 20}), 64);
}

// A prompt that all texts share has room once, and a table for it.
TEST(StreamPlan, WhatIsSharedIsHeldOnce) {
    const Model model = model_of(8192);
    EngineOptions wanted = streaming(false, 3);
    const EngineOptions plain = with_defaults(model, wanted, 0);
    wanted.shared = 1000;
    const EngineOptions options = with_defaults(model, wanted, 0);
    EXPECT_EQ(options.pool, plain.pool + 1000);
    EXPECT_EQ(most_held(model.spec, options), most_held(model.spec, plain) + 1000);
}

TEST(StreamPlan, AWindowThatDoesNotFitIsRefusedWithTheWindow) {
    const Model model = model_of(8192);
    const auto refusal = [](auto&& what) -> std::string {
        try {
            what();
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::device);
            return error.what();
        }
        return "none";
    };
    const std::string host = refusal([&] {
        require_engine(model, streaming(false, 1, {4, 1 << 29}));
    });
    EXPECT_NE(host.find("use a smaller --window"), std::string::npos) << host;
    if (!plans_are_whole()) return;
    const std::uint64_t gib = std::uint64_t{1} << 30;
    const auto require = [&](int window) {
        const EngineOptions wanted = streaming(true, 1, {4, window});
        require_device_memory(model, with_defaults(model, wanted, gib), wanted, gib);
    };
    const std::string device = refusal([&] { require(1 << 27); });
    const std::size_t at = device.find("use --window ");
    ASSERT_NE(at, std::string::npos) << device;
    // The window that it suggests is the largest that fits, in steps of 64.
    const int window = std::stoi(device.substr(at + 13));
    EXPECT_NO_THROW(require(window));
    EXPECT_THROW(require(window + 64), Error);
}

}  // namespace
}  // namespace mr::model::stream_plan_test
