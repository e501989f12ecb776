// --check-nan on the GPU: damage is traced to its layer, stage and position, as on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "core/thread_pool.h"
#include "decode/session.h"
#include "families.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"
#include "model/io/convert.h"
#include "plant.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class GpuCheckNan : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

std::unique_ptr<Engine> on_gpu(Model loaded, EngineOptions options) {
    auto model = std::make_shared<Model>(std::move(loaded));
    ThreadPool pool(4);
    auto weights = load_to_device(*model, pool, nullptr);
    options.cuda = true;
    return make_engine(model, options, weights);
}

EngineOptions checked(bool fuse = true) {
    EngineOptions options;
    options.check_nan = true;
    options.fuse = fuse;
    options.context = 128;
    return options;
}

// Tokens from 11 on, wrapping to 0 at the end of the vocabulary (at least 48).
std::vector<std::int32_t> prompt_of(const ModelSpec& spec, std::size_t count) {
    std::vector<std::int32_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) {
        ids[i] = static_cast<std::int32_t>((i + 11) % static_cast<std::size_t>(spec.vocab));
    }
    return ids;
}

// The error of one pass over the tokens, with logits of the last.
std::string error_of_pass(Engine& engine, std::span<const std::int32_t> ids) {
    const SeqId seq = engine.cache().open();
    std::string error = "no error";
    try {
        const BatchItem item = prompt_item(seq, ids);
        engine.submit({&item, 1});
    } catch (const Error& caught) {
        EXPECT_EQ(caught.kind(), ErrorKind::input);
        error = caught.what();
    }
    engine.cache().close(seq);
    return error;
}

// Tokens in one pass: few use the decode kernels, many those of a prompt.
std::vector<std::size_t> lengths_for(const ModelSpec& spec) {
    std::vector<std::size_t> lengths{20};
    if (!spec.learned_positions) lengths.push_back(100);
    return lengths;
}

void expect_traced(const std::string& path, RoleAt at, float value, bool fuse) {
    Model model = load_model(path);
    const ModelSpec spec = model.spec;
    SCOPED_TRACE(path + " role " + std::to_string(static_cast<int>(at.role)) + " layer " +
                 std::to_string(at.layer) + (fuse ? " fused " : " plain ") + std::to_string(value));
    std::int64_t element = role_shape(spec, at.role).count() / 2;
    if (at.role == Role::embedding) element = std::int64_t{11 + 5} * spec.dim;  // of token 5
    if (at.role == Role::positions) element = std::int64_t{13} * spec.dim;
    test::plant(model, at, element, value);
    EngineOptions options = checked(fuse);
    if (spec.learned_positions) options.context = std::min<std::int64_t>(128, spec.context);
    const auto engine = on_gpu(std::move(model), options);
    for (const std::size_t count : lengths_for(spec)) {
        const std::vector<std::int32_t> ids = prompt_of(spec, count);
        const int stage = test::stage_of(spec, at);
        const std::int64_t position = at.role == Role::embedding   ? 5
                                      : at.role == Role::positions ? 13
                                      : stage == logits_stage(spec)
                                          ? static_cast<std::int64_t>(count) - 1
                                          : 0;
        // Twice: after an error the engine must find the next one as well.
        for (int i = 0; i < 2; ++i) {
            const std::string error = error_of_pass(*engine, ids);
            EXPECT_EQ(error.find(path + ": " + test::finding(spec, stage, value, position)), 0u)
                << count << " tokens: " << error;
        }
    }
}

TEST_F(GpuCheckNan, EveryTensorOfEveryFamilyIsTracedToItsStage) {
    for (const char* family : test::kFamilies) {
        const std::string folder = test::reference(family);
        const ModelSpec spec = load_model(folder).spec;
        for (const RoleAt at : roles_of(spec)) {
            if (at.layer >= 0 && at.layer != spec.layers - 1) continue;
            expect_traced(folder, at, kNan, true);
        }
        expect_traced(folder, {Role::o, 0}, kNan, false);
        expect_traced(folder, {Role::down, 0}, kNan, false);
        expect_traced(folder, {Role::embedding}, kInfinity, true);
        if (spec.out_bias) expect_traced(folder, {Role::o_bias, 0}, -kInfinity, true);
        if (spec.mlp_bias) expect_traced(folder, {Role::down_bias, 0}, kInfinity, true);
    }
}

TEST_F(GpuCheckNan, InEveryTypeOfWeights) {
    const test::TempFolder folder;
    for (const char* family : {"llama2", "qwen2", "gpt2", "gpt-neox"}) {
        for (const DType type : {DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
            const std::string path = folder / (std::string(family) + dtype_name(type) + ".gguf");
            convert_model(test::reference(family), path, {.type = type});
            const int last = load_model(path).spec.layers - 1;
            for (const bool fuse : {true, false}) {
                for (const Role role : {Role::o, Role::v, Role::up, Role::down, Role::mlp_norm}) {
                    expect_traced(path, {role, last}, kNan, fuse);
                }
                expect_traced(path, {Role::embedding}, kNan, fuse);
            }
        }
    }
}

// Wide enough for kernels that small models do not use.
TEST_F(GpuCheckNan, InAModelOfRealWidth) {
    for (const char* source : {"random:stories-42m:f16", "random:stories-42m:bf16",
                               "random:stories-42m:q8_0", "random:stories-42m:q4_0"}) {
        for (const Role role : {Role::o, Role::mlp_norm, Role::down}) {
            expect_traced(source, {role, 3}, kNan, true);
        }
    }
}

// Healthy weights whose activations overflow f16.
TEST_F(GpuCheckNan, OverflowOfF16IsFoundAndNamed) {
    const test::TempFolder folder;
    for (const DType type : {DType::f16, DType::bf16}) {
        const std::string path = folder / (std::string(dtype_name(type)) + ".gguf");
        convert_model(test::reference("llama3"), path, {.type = type});
        for (const bool fuse : {true, false}) {
            Model model = load_model(path);
            const ModelSpec spec = model.spec;
            test::plant(model, {Role::mlp_norm, 1}, 3, 1e7f);
            const auto engine = on_gpu(std::move(model), checked(fuse));
            const std::string error = error_of_pass(*engine, prompt_of(spec, 20));
            if (type == DType::bf16) {
                EXPECT_EQ(error, "no error");
                continue;
            }
            EXPECT_NE(error.find("layer 1, after mlp (down) = "), std::string::npos) << error;
            EXPECT_NE(error.find("use bf16"), std::string::npos) << error;
        }
    }
}

TEST_F(GpuCheckNan, TheRowsOfAMixedBatchHavePositionsOfTheirOwn) {
    const std::string folder = test::reference("llama3");
    Model model = load_model(folder);
    const ModelSpec spec = model.spec;
    const std::vector<std::int32_t> ids = prompt_of(spec, 120);
    const std::span<const std::int32_t> all(ids);
    test::plant(model, {Role::embedding}, std::int64_t{ids[45]} * spec.dim, kNan);
    EngineOptions options = checked();
    options.max_sequences = 3;
    options.context = 512;
    const auto engine = on_gpu(std::move(model), options);
    KvCache& cache = engine->cache();
    const SeqId a = cache.open(), b = cache.open(), c = cache.open();
    const BatchItem first[] = {{a, all.subspan(0, 3), BatchItem::Logits::last},
                               {b, all.subspan(0, 4), BatchItem::Logits::none}};
    engine->submit(first);
    const auto error = [&](std::span<const BatchItem> batch) {
        try {
            engine->submit(batch);
        } catch (const Error& caught) {
            return std::string(caught.what());
        }
        return std::string("no error");
    };
    // In the part of many tokens, which comes after the 4 rows of the other part.
    const BatchItem many[] = {prompt_item(b, all.subspan(2, 80)),
                              {a, all.subspan(3, 4), BatchItem::Logits::last}};
    EXPECT_NE(error(many).find(test::finding(spec, embedding_stage(), kNan, 4 + 43)),
              std::string::npos);
    // In the part of few tokens, after a healthy one.
    const BatchItem few[] = {{a, all.subspan(3, 4), BatchItem::Logits::last},
                             {c, all.subspan(43, 5), BatchItem::Logits::last}};
    EXPECT_NE(error(few).find(test::finding(spec, embedding_stage(), kNan, 2)), std::string::npos);
    for (const SeqId seq : {a, b, c}) cache.close(seq);
}

TEST_F(GpuCheckNan, AHealthyModelMakesTheSameTokens) {
    for (const char* family : {"llama2", "gpt2"}) {
        const std::string folder = test::reference(family);
        decode::GenerateOptions generate;
        generate.max_tokens = 30;
        generate.sampling.seed = 5;
        generate.ignore_end = true;
        std::vector<std::int32_t> ids[2];
        for (const bool check : {false, true}) {
            Model model = load_model(folder);
            EngineOptions options = checked();
            options.context = std::min<std::int64_t>(128, model.spec.context);
            options.check_nan = check;
            const std::vector<std::int32_t> prompt = prompt_of(model.spec, 9);
            const auto engine = on_gpu(std::move(model), options);
            decode::Session session(*engine);
            ids[check] = session.generate(prompt, generate).ids;
            EXPECT_EQ(engine->ledger().op(OpKind::check).calls > 0, check);
        }
        EXPECT_EQ(ids[0].size(), 30u);
        EXPECT_EQ(ids[1], ids[0]);
    }
}

// Learned positions: the step that reaches a damaged one fails, after all tokens before it.
TEST_F(GpuCheckNan, ADecodeStepIsTracedToo) {
    const std::string folder = test::reference("gpt2");
    decode::GenerateOptions generate;
    generate.max_tokens = 12;
    generate.sampling.temperature = 0;
    generate.ignore_end = true;
    Model model = load_model(folder);
    const ModelSpec spec = model.spec;
    ASSERT_GE(spec.context, 24);
    EngineOptions options = checked();
    options.context = 24;
    const std::vector<std::int32_t> prompt = prompt_of(spec, 9);
    // The prompt is at 0 to 8, drawn tokens from 9 on; the one at 13 is the fifth, and the last
    // shown.
    test::plant(model, {Role::positions}, std::int64_t{13} * spec.dim + 1, kInfinity);
    const auto engine = on_gpu(std::move(model), options);
    decode::Session session(*engine);
    for (int i = 0; i < 2; ++i) {
        try {
            session.generate(prompt, generate);
            FAIL() << "an infinity went through";
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what())
                          .find(test::finding(spec, embedding_stage(), kInfinity, 13)),
                      std::string::npos)
                << error.what();
        }
        EXPECT_EQ(engine->ledger().op(OpKind::sample).calls, static_cast<unsigned>(6 * (i + 1)));
    }
}

// Without the switch the sampler finds the NaN, and the error says what to do.
TEST_F(GpuCheckNan, WithoutItTheErrorNamesTheSwitch) {
    Model model = load_model(test::reference("llama2"));
    const std::vector<std::int32_t> prompt = prompt_of(model.spec, 9);
    test::plant(model, {Role::down, 0}, 7, kNan);
    EngineOptions options = checked();
    options.check_nan = false;
    const auto engine = on_gpu(std::move(model), options);
    try {
        decode::Session(*engine).generate(prompt, {});
        FAIL() << "a NaN went through";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("--check-nan"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace mr::model
