// The plan of an engine on the GPU, and what it refuses, before there is one.
#include <gtest/gtest.h>

#include <string>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/device_buffers.h"
#include "model/cuda/device_engine.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::model {
namespace {

ModelSpec small(int head_dim) {
    ModelSpec spec = random_shape("random:stories-42m").first;
    spec.layers = 2;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = head_dim;
    spec.rope.rotary = head_dim;
    spec.dim = 64;
    spec.hidden = 96;
    spec.vocab = 300;
    return spec;
}

EngineOptions on_gpu(std::int64_t context) {
    EngineOptions options;
    options.cuda = true;
    options.context = context;
    return options;
}

// The error of `what`, of a given kind; "none" if there is none.
template <typename What>
std::string refusal(ErrorKind kind, What&& what) {
    try {
        what();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), kind) << error.what();
        return error.what();
    }
    return "none";
}

void expect_in(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(DevicePlan, HeadSizesThatTheKernelsLackAreRefusedBeforeLoading) {
    for (const int size : {4, 12, 100, 260, 264}) {
        const Model model = deferred_random_model(small(size), DType::bf16, 1);
        const std::string said = refusal(
            ErrorKind::input, [&] { require_engine(model, on_gpu(64)); });  // without a device
        expect_in(said, {"head size", std::to_string(size).c_str(), "--device cpu"});
        EngineOptions on_cpu = on_gpu(64);
        on_cpu.cuda = false;
        EXPECT_NO_THROW(require_engine(model, on_cpu));
    }
    for (const int size : {8, 16, 80, 256}) {
        EXPECT_NO_THROW(require_device_shape(deferred_random_model(small(size), DType::bf16, 1)));
    }
}

TEST(DevicePlan, MatricesThatCannotBeJoinedAreRefusedBeforeLoading) {
    Model model = deferred_random_model(small(32), DType::q8_0, 1);
    EXPECT_NO_THROW(require_device_shape(model));
    model.weights.layers[1].k.dtype = DType::q4_0;
    expect_in(refusal(ErrorKind::input, [&] { require_device_shape(model); }),
              {"different types", "millrace convert", "--device cpu"});
}

TEST(DevicePlan, PositionsThatTheTableLacksAreRefusedOnBothEngines) {
    const Model model = deferred_random_model("random:gpt2:bf16");
    for (const bool cuda : {false, true}) {
        EngineOptions options = on_gpu(1128);
        options.cuda = cuda;
        expect_in(refusal(ErrorKind::input, [&] { require_engine(model, options); }),
                  {"--ctx", "1128", "1024"});
        options.context = 1024;
        options.max_sequences = 2;  // the pool may be larger than the table
        options.cuda = false;
        EXPECT_NO_THROW(require_engine(model, options));
    }
}

// As in chat without --ctx: all positions of the model.
TEST(DevicePlan, TheRealContextIsHeldAgainstTheMemory) {
    if (cuda::built() && !cuda::device()) GTEST_SKIP() << "kernels plan scratch for their GPU";
    const Model model = deferred_random_model("random:llama-2-7b:bf16");
    EngineOptions options = on_gpu(model.spec.context);
    options.max_batch = kDeviceBatch;
    options.max_logits = 1;
    const std::uint64_t gib = std::uint64_t{1} << 30;
    const auto require = [&](std::uint64_t available) {
        require_device_memory(model, with_defaults(model, options, available), options, available);
    };
    EXPECT_NO_THROW(require(64 * gib));
    // 12.6 GiB of weights, and 2 of cache with the page for idle rows.
    const std::string said = refusal(ErrorKind::device, [&] { require(14 * gib); });
    expect_in(said, {"KV cache 2.02 GiB", "use --ctx ", "q8_0 (6.6"});
    // The context that it suggests is the largest that fits, in steps of 64.
    const std::int64_t suggested = std::stoll(said.substr(said.find("use --ctx ") + 10));
    EXPECT_GT(suggested, 0);
    EXPECT_LT(suggested, model.spec.context);
    options.context = suggested;
    EXPECT_NO_THROW(require(14 * gib));
    options.context = suggested + 64;
    EXPECT_THROW(require(14 * gib), Error);

    // A pool that was given stays; a smaller one fits.
    options.context = 1024;
    options.pool = 1 << 20;
    const std::string pool = refusal(ErrorKind::device, [&] { require(24 * gib); });
    expect_in(pool, {"use --pool "});
    options.pool = std::stoll(pool.substr(pool.find("use --pool ") + 11));
    EXPECT_GT(options.pool, 1024);
    EXPECT_NO_THROW(require(24 * gib));
    options.pool += 64;
    EXPECT_THROW(require(24 * gib), Error);
}

TEST(DevicePlan, ActivationsAreTheSumOfTheBuffers) {
    const ModelSpec spec = small(32);
    const Model model = deferred_random_model(spec, DType::bf16, 1);
    EngineOptions options = on_gpu(100);
    options.max_batch = 7;
    options.max_sequences = 3;
    options.max_logits = 5;
    std::uint64_t want = 0;
    const auto add = [&](std::uint64_t elements, std::uint64_t size) {
        want += (elements * size + 255) / 256 * 256;
    };
    add(7 * 64, 4);                               // x
    add(7 * 64, 4);                               // h
    add(7 * (64 + 2 * 64), 4);                    // qkv
    add(7 * 64, 4), add(7 * 64, 4);               // q, attn
    add(7 * 2 * 96, 4), add(7 * 96, 4);           // gate_up, up
    add(5 * 64, 4), add(5 * 300, 4);              // last, logits
    add(100 * 32, 4), add(5, 8);                  // rope, nll
    for (int i = 0; i < 2; ++i) {                 // the arrays of passes and of steps
        add(7, 4), add(7, 4), add(7, 4);          // ids, positions, sequence
        add(2 * 4, 4), add(3 * 4, 4), add(7, 4);  // first, tables of 4 entries, rows
    }
    add(2 * 3, 4);  // circles
    EXPECT_EQ(DeviceBuffers::activation_bytes(model, options), want);
    options.check_nan = true;
    add(1, 8);
    EXPECT_EQ(DeviceBuffers::activation_bytes(model, options), want);
}

}  // namespace
}  // namespace mr::model
