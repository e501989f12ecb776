// Block diffusion models in training: gradients compared with PyTorch's and with finite
// differences, what a block's loss may depend on, and changes that must not affect bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/safetensors.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "model/train/train_engine.h"
#include "temp_folder.h"

namespace mr::model::diffusion_train_test {
namespace {

constexpr int kSequences = 2, kSeq = 16, kBlock = 4, kTokens = kSequences * kSeq;

std::vector<float> floats(const formats::FileTensor* tensor) {
    std::vector<float> out(static_cast<std::size_t>(tensor->view.shape.count()));
    std::memcpy(out.data(), tensor->view.data, tensor->view.bytes());
    return out;
}
std::vector<std::int32_t> integers(const formats::FileTensor* tensor) {
    std::vector<std::int64_t> wide(static_cast<std::size_t>(tensor->view.shape.count()));
    std::memcpy(wide.data(), tensor->view.data, tensor->view.bytes());
    return {wide.begin(), wide.end()};
}

// [sequences, seq] each.
struct Batch {
    std::vector<std::int32_t> clean, noisy, masked;
    std::vector<float> weights;
};

std::int64_t put(TrainEngine& engine, const Batch& batch, int slot = 0) {
    const SlotParts<std::int32_t> to(engine.ops().host_slot(slot), engine.options().shape);
    std::copy(batch.noisy.begin(), batch.noisy.end(), to.ids.begin());
    std::copy(batch.clean.begin(), batch.clean.end(), to.ids.begin() + kTokens);
    std::size_t count = 0;
    for (std::size_t i = 0; i < batch.masked.size(); ++i) {
        if (!batch.masked[i]) continue;
        to.rows[count] = static_cast<std::int32_t>(i);
        to.targets[count] = batch.clean[i];
        std::memcpy(&to.weights[count], &batch.weights[i], sizeof(float));
        ++count;
    }
    engine.put(slot, static_cast<std::int64_t>(count));
    return static_cast<std::int64_t>(count);
}

TrainEngineOptions options_of(Recompute recompute = Recompute::none, int threads = 2,
                              std::int64_t head_rows = 0) {
    return {
        .threads = threads,
        .shape = {.sequences = kSequences, .seq = kSeq, .head_rows = head_rows, .block = kBlock},
        .recompute = recompute};
}

ModelSpec tiny_spec(bool tied = false, int layers = 2) {
    ModelSpec spec;
    spec.family = "qwen3";
    spec.vocab = 23;
    spec.dim = 24;
    spec.layers = layers;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.hidden = 40;
    spec.context = kSeq;
    spec.rope.rotary = 8;
    spec.qk_norm = true;
    spec.tied_embeddings = tied;
    return diffusion_spec(spec, 23, kBlock);
}

// Every block has another number of masks, from one to all.
Batch tiny_batch(const ModelSpec& spec) {
    Batch out;
    for (int i = 0; i < kTokens; ++i) {
        const int block = i / kBlock, count = 1 + block % kBlock;
        out.clean.push_back((i * 7 + i * i) % (spec.vocab - 1));
        out.masked.push_back((i + block) % kBlock < count ? 1 : 0);
        out.noisy.push_back(out.masked.back() ? spec.diffusion->mask : out.clean.back());
        out.weights.push_back(static_cast<float>(kBlock) / static_cast<float>(count));
    }
    return out;
}

// Larger weights than at initialisation, so that attention is not nearly uniform.
void make_weights(TrainEngine& engine, std::uint64_t seed = 5) {
    engine.init(seed);
    std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(params.data(), nullptr, nullptr);
    for (std::int64_t i = 0; i < engine.layout().decayed; ++i) {
        params[static_cast<std::size_t>(i)] *= 15;
    }
    engine.set_state(params.data(), nullptr, nullptr);
}

std::vector<float> losses_of(TrainEngine& engine, const Batch& batch) {
    std::vector<float> out(static_cast<std::size_t>(put(engine, batch)));
    engine.evaluate(0);
    engine.read_losses(out);
    return out;
}

class RecordedDiffusion : public ::testing::TestWithParam<const char*> {};

// Like the autoregressive test of train_test.cpp, through the writer of models.
TEST_P(RecordedDiffusion, GradientsAreThoseOfPyTorch) {
    const std::string folder = std::string(MR_SOURCE_DIR) + "/tests/reference/" + GetParam();
    const auto recorded = formats::SafetensorsFile::open(folder + "/diffusion.safetensors");
    const Model model = load_model(folder);
    const ModelSpec ar = trainable_spec(model.spec);
    const ModelSpec spec = diffusion_spec(ar, ar.vocab - 1, kBlock);
    ASSERT_EQ(spec.vocab, ar.vocab);
    Batch batch;
    batch.clean = integers(recorded.find_tensor("ids"));
    batch.masked = integers(recorded.find_tensor("masked"));
    batch.weights = floats(recorded.find_tensor("weights"));
    batch.noisy = batch.clean;
    for (std::size_t i = 0; i < batch.noisy.size(); ++i) {
        if (batch.masked[i]) batch.noisy[i] = spec.diffusion->mask;
    }
    TrainEngine engine(spec, options_of());
    engine.load(model);
    std::vector<float> losses(static_cast<std::size_t>(put(engine, batch)));
    engine.accumulate(0, 1.0 / kTokens);
    engine.read_losses(losses);
    const std::vector<float> wanted = floats(recorded.find_tensor("losses"));
    std::size_t count = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (!batch.masked[i]) continue;
        EXPECT_NEAR(losses[count], wanted[i], 2e-5f * (1 + wanted[i])) << i;
        ++count;
    }
    std::vector<float> flat(static_cast<std::size_t>(engine.layout().count));
    engine.read_grads(flat);
    const test::TempFolder written;
    write_huggingface(written.path(), ar, param_views(param_layout(ar), flat.data(), DType::f32),
                      nullptr);
    const auto ours = formats::SafetensorsFile::open(written.path());
    const double whole = static_cast<double>(floats(recorded.find_tensor("grad_norm"))[0]);
    int compared = 0;
    for (const formats::FileTensor& tensor : recorded.tensors()) {
        const auto* mine = ours.find_tensor(tensor.name);
        if (!mine) continue;
        SCOPED_TRACE(tensor.name);
        ++compared;
        const std::vector<float> expected = floats(&tensor), got = floats(mine);
        const std::size_t stride = (got.size() + 191) / 192;
        double norm = 0, dot = 0, a = 0, b = 0;
        for (const float g : got) norm += static_cast<double>(g) * static_cast<double>(g);
        for (std::size_t i = 1; i < expected.size(); ++i) {
            const double e = static_cast<double>(expected[i]);
            const double g = static_cast<double>(got[(i - 1) * stride]);
            dot += e * g, a += e * e, b += g * g;
        }
        const double rounding = 10 * 0x1p-24;  // train_test.cpp
        EXPECT_NEAR(std::sqrt(norm), static_cast<double>(expected[0]),
                    8 * rounding * static_cast<double>(expected[0]) + rounding * whole);
        if (a > std::pow(1e-4 * whole, 2)) {
            EXPECT_GT(dot / std::sqrt(a * b), 1 - 1e-6);
        }
    }
    EXPECT_EQ(compared, static_cast<int>(ours.tensors().size()));
}
INSTANTIATE_TEST_SUITE_P(All, RecordedDiffusion, ::testing::Values("llama2", "qwen3"),
                         [](const auto& given) { return std::string(given.param); });

// Tensor by tensor, along its own gradient: the slope there equals the gradient's norm.
TEST(DiffusionTraining, GradientsAreTheSlope) {
    // A single layer is both the first and the last, which only needs keys and values of clean
    // rows.
    for (const auto& [tied, layers] : {std::pair{false, 1}, {false, 2}, {true, 3}}) {
        SCOPED_TRACE(layers);
        const ModelSpec spec = tiny_spec(tied, layers);
        TrainEngine engine(spec, options_of());
        make_weights(engine);
        const Batch batch = tiny_batch(spec);
        put(engine, batch);
        engine.accumulate(0, 1.0 / kTokens);
        const auto count = static_cast<std::size_t>(engine.layout().count);
        std::vector<float> params(count), grads(count);
        engine.read_grads(grads);
        engine.evaluate(0);  // its sum starts with the accumulated losses
        engine.get_state(params.data(), nullptr, nullptr);
        for (const ParamLayout::Entry& entry : engine.layout().entries) {
            SCOPED_TRACE(static_cast<int>(entry.at.role));
            const auto begin = static_cast<std::size_t>(entry.offset);
            const auto end = begin + static_cast<std::size_t>(entry.shape.count());
            double norm = 0;
            for (std::size_t i = begin; i < end; ++i) {
                norm += static_cast<double>(grads[i]) * static_cast<double>(grads[i]);
            }
            norm = std::sqrt(norm);
            ASSERT_GT(norm, 1e-4);
            // The loss has an error of 2^-24 of its size in every term; a step of 2e-3 keeps the
            // second-order term below a hundredth of these slopes.
            const double step = 2e-3;
            double at[2];
            for (const int side : {0, 1}) {
                std::vector<float> moved = params;
                for (std::size_t i = begin; i < end; ++i) {
                    moved[i] += static_cast<float>((side ? step : -step) / norm) * grads[i];
                }
                engine.set_state(moved.data(), nullptr, nullptr);
                at[side] = engine.evaluate(0) / kTokens;
            }
            EXPECT_NEAR((at[1] - at[0]) / (2 * step), norm, 0.01 * norm + 2e-3);
        }
    }
}

// Losses of rows in blocks for which `may` returns false keep their bits.
void expect_changes(TrainEngine& engine, const Batch& before, const Batch& after,
                    bool (*may)(int block, int changed), int changed) {
    const std::vector<float> a = losses_of(engine, before), b = losses_of(engine, after);
    std::size_t row = 0;
    int differ = 0;
    for (std::size_t i = 0; i < before.masked.size(); ++i) {
        if (!before.masked[i]) continue;
        const int sequence = static_cast<int>(i) / kSeq;
        const int block = static_cast<int>(i) % kSeq / kBlock;
        const bool same = std::memcmp(&a[row], &b[row], sizeof(float)) == 0;
        if (sequence == 1 || !may(block, changed)) {
            EXPECT_TRUE(same) << "row " << i << ", change in block " << changed;
        }
        differ += !same;
        ++row;
    }
    const bool any = changed + 1 < kSeq / kBlock || may(changed, changed);
    EXPECT_EQ(differ > 0, any);
}

// A clean token is seen only by noisy blocks after its own, a noisy one only by its own block; and
// no sequence sees another.
TEST(DiffusionTraining, ABlockSeesItselfAndCleanBlocksBeforeIt) {
    const ModelSpec spec = tiny_spec();
    TrainEngine engine(spec, options_of());
    make_weights(engine);
    const Batch batch = tiny_batch(spec);
    for (int at = 0; at < kSeq; ++at) {
        const auto i = static_cast<std::size_t>(at);
        Batch clean = batch;
        clean.clean[i] = (clean.clean[i] + 1) % (spec.vocab - 1);
        if (!batch.masked[i]) {  // otherwise the target would change
            expect_changes(
                engine, batch, clean, [](int block, int changed) { return block > changed; },
                at / kBlock);
        }
        Batch noisy = batch;
        noisy.noisy[i] = (noisy.noisy[i] + 1) % (spec.vocab - 1);
        expect_changes(
            engine, batch, noisy, [](int block, int changed) { return block == changed; },
            at / kBlock);
    }
}

// An unknown row gives the mask no probability: its logit changes nothing, and its row of the head
// has no gradient.
TEST(DiffusionTraining, TheMaskHasNoProbability) {
    const ModelSpec spec = tiny_spec();
    TrainEngine engine(spec, options_of());
    make_weights(engine);
    const Batch batch = tiny_batch(spec);
    const std::vector<float> before = losses_of(engine, batch);
    const auto count = static_cast<std::size_t>(engine.layout().count);
    std::vector<float> params(count), grads(count);
    engine.get_state(params.data(), nullptr, nullptr);
    const Weights views = param_views(engine.layout(), params.data(), DType::f32);
    for (int i = 0; i < spec.dim; ++i) views.head.f32(spec.diffusion->mask)[i] = 40;
    engine.set_state(params.data(), nullptr, nullptr);
    const std::vector<float> after = losses_of(engine, batch);
    EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
    engine.accumulate(0, 1.0 / kTokens);
    engine.read_grads(grads);
    const Weights of = param_views(engine.layout(), grads.data(), DType::f32);
    for (int i = 0; i < spec.dim; ++i) EXPECT_EQ(of.head.f32(spec.diffusion->mask)[i], 0);
    double embedded = 0;  // while its embedding has a gradient
    for (int i = 0; i < spec.dim; ++i) {
        embedded += std::abs(static_cast<double>(of.embedding.f32(spec.diffusion->mask)[i]));
    }
    EXPECT_GT(embedded, 0);
}

TEST(DiffusionTraining, BitsDoNotDependOnRecomputationThreadsOrChunks) {
    const ModelSpec spec = tiny_spec();
    const auto run = [&](const TrainEngineOptions& options) {
        TrainEngine engine(spec, options);
        make_weights(engine);
        const Batch batch = tiny_batch(spec);
        for (int step = 1; step <= 3; ++step) {
            put(engine, batch);
            engine.accumulate(0, 1.0 / kTokens);
            EXPECT_FALSE(engine.update({.lr = 0.01f, .step = step}).skipped);
        }
        std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
        engine.get_state(out.data(), nullptr, nullptr);
        return out;
    };
    const std::vector<float> first = run(options_of());
    for (const TrainEngineOptions& options :
         {options_of(), options_of(Recompute::light), options_of(Recompute::full),
          options_of(Recompute::none, 1), options_of(Recompute::none, 3)}) {
        EXPECT_EQ(run(options), first);
    }
}

// Padding rows of the head, which make their number a multiple, have no effect: in one chunk and in
// several, the last of which has no room for all of them.
TEST(DiffusionTraining, RowsThatDoNotCountChangeNothing) {
    const ModelSpec spec = tiny_spec();
    const Batch batch = tiny_batch(spec);
    std::vector<float> losses, grads;
    for (const auto& [rows, step] :
         {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 7}, {0, 64}, {9, 4}, {6, 6}, {32, 32}}) {
        SCOPED_TRACE(step);
        TrainEngineOptions options = options_of(Recompute::none, 2, rows);
        options.shape.head_step = step;
        TrainEngine engine(spec, options);
        make_weights(engine);
        // Rows that counted in an earlier batch may be left in the slot.
        for (std::int32_t& word : engine.ops().host_slot(0)) word = 3;
        std::vector<float> got(static_cast<std::size_t>(put(engine, batch)));
        ASSERT_LT(got.size(), batch.masked.size());
        ASSERT_NE(got.size() % 7, 0u);
        engine.accumulate(0, 1.0 / kTokens);
        engine.read_losses(got);
        std::vector<float> slopes(static_cast<std::size_t>(engine.layout().count));
        engine.read_grads(slopes);
        if (losses.empty()) losses = got, grads = slopes;
        EXPECT_EQ(got, losses);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < grads.size(); ++i) {
            error += std::pow(double{slopes[i]} - double{grads[i]}, 2);
            size += std::pow(double{grads[i]}, 2);
        }
        EXPECT_LT(std::sqrt(error), 1e-6 * std::sqrt(size));  // only another order of sums
        EXPECT_EQ(engine.update({.lr = 0.0f, .step = 1}).skipped, false);
    }
}

TEST(DiffusionTraining, AStepLowersTheLoss) {
    const ModelSpec spec = tiny_spec(true);
    TrainEngine engine(spec, options_of(Recompute::none, 2, 5));  // chunks of the head, too
    engine.init(1);
    const Batch batch = tiny_batch(spec);
    std::vector<double> losses;
    for (int step = 1; step <= 60; ++step) {
        put(engine, batch);
        engine.accumulate(0, 1.0 / kTokens);
        losses.push_back(engine.update({.lr = 0.01f, .step = step}).loss);
    }
    EXPECT_GT(losses.front(), 2.5);  // log(23) is 3.1
    EXPECT_LT(losses.back(), 0.3 * losses.front());
}

TEST(DiffusionSpec, IsMadeOfLlamaAndQwen3) {
    ModelSpec spec = tiny_spec();
    EXPECT_EQ(spec.family, "sdar");
    EXPECT_EQ(spec.vocab, 24);
    EXPECT_EQ(spec.diffusion, (DiffusionSpec{.mask = 23, .block = kBlock}));
    EXPECT_EQ(spec.layer(1).mask, (ops::AttentionMask{ops::AttentionMask::Kind::block_causal, 4}));
    spec.validate("x");
    const ModelSpec again = diffusion_spec(spec, 23, 8);  // from one of these, with other blocks
    EXPECT_EQ(again.vocab, 24);
    EXPECT_EQ(again.diffusion->block, 8);
    again.validate("x");
    for (const char* family : {"gpt2", "gpt-neox", "mistral", "qwen2"}) {
        ModelSpec other = tiny_spec();
        other.family = family;
        other.learned_positions = other.family == "gpt2";
        try {
            diffusion_spec(other, 3, 4);
            ADD_FAILURE() << family;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            EXPECT_NE(std::string(error.what()).find(family), std::string::npos) << error.what();
        }
    }
    ModelSpec window = tiny_spec();
    window.mask.window = 8;
    EXPECT_THROW(diffusion_spec(window, 3, 4), Error);
}

// The new token is the mean of the others, in both tables.
TEST(DiffusionSpec, ATokenMoreIsTheMeanOfTheOthers) {
    const Model model = load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/llama2");
    const ModelSpec ar = trainable_spec(model.spec);
    const ModelSpec spec = diffusion_spec(ar, ar.vocab, kBlock);
    TrainEngine engine(spec, options_of());
    engine.load(model);
    std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(params.data(), nullptr, nullptr);
    const Weights of = param_views(engine.layout(), params.data(), DType::f32);
    for (const Tensor& table : {of.embedding, of.head}) {
        ASSERT_EQ(table.dim(0), ar.vocab + 1);
        for (int i = 0; i < spec.dim; ++i) {
            double sum = 0;
            for (int row = 0; row < ar.vocab; ++row) sum += double{table.f32(row)[i]};
            EXPECT_EQ(table.f32(ar.vocab)[i], static_cast<float>(sum / ar.vocab));
        }
    }
}

}  // namespace
}  // namespace mr::model::diffusion_train_test
