// Whole models in training: gradients and losses compared with PyTorch's, and changes that must not
// affect bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "families.h"
#include "formats/safetensors.h"
#include "model/engine.h"
#include "model/grain_cases.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "model/train/train_engine.h"
#include "temp_folder.h"

namespace mr::model::train_test {
namespace {

// Models with a train.safetensors (tests/reference/make_reference.py describes it).
constexpr const char* kTrained[] = {"llama2", "llama3", "mistral",  "qwen2",       "qwen2-window",
                                    "qwen3",  "gpt2",   "gpt-neox", "gpt-neox-seq"};

std::string reference_folder(const std::string& family) {
    return std::string(MR_SOURCE_DIR) + "/tests/reference/" + family;
}

std::vector<float> floats(const formats::FileTensor* tensor) {
    std::vector<float> out(static_cast<std::size_t>(tensor->view.shape.count()));
    std::memcpy(out.data(), tensor->view.data, tensor->view.bytes());
    return out;
}

// The recorded batch: 2 sequences of 16.
constexpr int kSequences = 2, kSeq = 16;
void put_batch(TrainEngine& engine, const formats::SafetensorsFile& recorded) {
    const auto* ids = static_cast<const std::byte*>(recorded.find_tensor("ids")->view.data);
    const auto host = engine.ops().host_slot(0);
    for (int s = 0; s < kSequences; ++s) {
        for (int t = 0; t <= kSeq; ++t) {
            std::int64_t id = 0;
            std::memcpy(&id, ids + 8 * (s * (kSeq + 1) + t), 8);
            if (t < kSeq) host[static_cast<std::size_t>(s * kSeq + t)] = static_cast<int>(id);
            if (t > 0) {
                host[static_cast<std::size_t>(kSequences * kSeq + s * kSeq + t - 1)] =
                    static_cast<int>(id);
            }
        }
    }
    engine.put(0);
}

TrainEngineOptions options_of(Recompute recompute = Recompute::none, int threads = 2,
                              std::int64_t head_rows = 0) {
    return {.threads = threads,
            .shape = {.sequences = kSequences, .seq = kSeq, .head_rows = head_rows},
            .recompute = recompute};
}

ops::AdamW recorded_adamw(std::int64_t step) {
    return {.lr = 0.002f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = 0.1f,
            .clip = 1.0f,
            .step = step};
}

std::vector<float> gradients(const Model& model, const TrainEngineOptions& options,
                             const formats::SafetensorsFile& recorded) {
    TrainEngine engine(trainable_spec(model.spec), options);
    engine.load(model);
    put_batch(engine, recorded);
    engine.accumulate(0, 1.0 / (kSequences * kSeq));
    std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
    engine.read_grads(out);
    return out;
}

class Trained : public ::testing::TestWithParam<const char*> {
  protected:
    std::string folder_ = reference_folder(GetParam());
    formats::SafetensorsFile recorded_ =
        formats::SafetensorsFile::open(folder_ + "/train.safetensors");
    Model model_ = load_model(folder_);
};

// The gradient goes through the writer of models, so that it has PyTorch's names and layout: a
// wrong name or a wrong row would be a wrong gradient.
TEST_P(Trained, GradientsAreThoseOfPyTorch) {
    std::vector<float> flat = gradients(model_, options_of(), recorded_);
    const ModelSpec spec = trainable_spec(model_.spec);
    const test::TempFolder written;
    write_huggingface(written.path(), spec,
                      param_views(param_layout(spec), flat.data(), DType::f32), nullptr);
    const auto ours = formats::SafetensorsFile::open(written.path());
    const double whole = static_cast<double>(floats(recorded_.find_tensor("grad_norm"))[0]);
    int compared = 0;
    for (const formats::FileTensor& tensor : recorded_.tensors()) {
        if (tensor.name == "ids" || tensor.name == "losses" || tensor.name == "grad_norm") continue;
        SCOPED_TRACE(tensor.name);
        const auto* mine = ours.find_tensor(tensor.name);
        // GPT-NeoX's files have embed_out where transformers 5 has lm_head in memory.
        if (!mine && tensor.name == "lm_head.weight") mine = ours.find_tensor("embed_out.weight");
        ASSERT_NE(mine, nullptr);
        ++compared;
        const std::vector<float> expected = floats(&tensor);  // its norm, then every k-th
        const std::vector<float> got = floats(mine);
        const std::size_t stride = (got.size() + 191) / 192;
        double norm = 0;
        for (const float g : got) norm += static_cast<double>(g) * static_cast<double>(g);
        norm = std::sqrt(norm);
        double dot = 0, a = 0, b = 0;
        for (std::size_t i = 1; i < expected.size(); ++i) {
            const double e = static_cast<double>(expected[i]);
            const double g = static_cast<double>(got[(i - 1) * stride]);
            dot += e * g;
            a += e * e;
            b += g * g;
        }
        // f32 has an error of 2^-24 per rounding; about a hundred dependent ones lie between the
        // loss and a weight, and they add up like a random walk: 2^-24 * 10 relative, and as much
        // of the whole gradient where a tensor's own nearly cancels (GPT-2's key biases have none
        // at all).
        const double rounding = 10 * 0x1p-24;
        EXPECT_NEAR(norm, static_cast<double>(expected[0]),
                    8 * rounding * static_cast<double>(expected[0]) + rounding * whole);
        if (a > std::pow(1e-4 * whole, 2)) {
            EXPECT_GT(dot / std::sqrt(a * b), 1 - 1e-6);
        }
    }
    EXPECT_EQ(compared, static_cast<int>(ours.tensors().size()));
}

TEST_P(Trained, TenStepsOfAdamWHaveTheLossesOfPyTorch) {
    TrainEngine engine(trainable_spec(model_.spec), options_of());
    engine.load(model_);
    put_batch(engine, recorded_);
    const std::vector<float> expected = floats(recorded_.find_tensor("losses"));
    for (std::size_t step = 0; step + 1 < expected.size(); ++step) {
        engine.accumulate(0, 1.0 / (kSequences * kSeq));
        const auto result = engine.update(recorded_adamw(static_cast<std::int64_t>(step) + 1));
        EXPECT_FALSE(result.skipped);
        // The first loss has the rounding error of one forward. AdamW divides a gradient by its own
        // size: where the gradient is only rounding error, a weight takes a whole step of lr in an
        // arbitrary direction, and such weights matter as little as their gradients: 1e-4 of the
        // whole.
        EXPECT_NEAR(result.loss, static_cast<double>(expected[step]),
                    (step == 0 ? 64 * 0x1p-24 : 1e-4) * static_cast<double>(expected[0]))
            << "step " << step;
    }
    const double last = engine.evaluate(0) / (kSequences * kSeq);
    EXPECT_NEAR(last, static_cast<double>(expected.back()),
                1e-4 * static_cast<double>(expected[0]));
}

TEST_P(Trained, RecomputationThreadsAndChunksChangeNoBit) {
    const std::vector<float> expected = gradients(model_, options_of(), recorded_);
    for (const Recompute recompute : {Recompute::light, Recompute::full}) {
        EXPECT_EQ(gradients(model_, options_of(recompute), recorded_), expected)
            << recompute_name(recompute);
    }
    for (const int threads : {1, 3}) {
        EXPECT_EQ(gradients(model_, options_of(Recompute::none, threads), recorded_), expected)
            << threads << " threads";
    }
    // The head in chunks of rows: dw is summed in another order, everything else is the same.
    const std::vector<float> chunks =
        gradients(model_, options_of(Recompute::none, 2, 7), recorded_);
    EXPECT_LT(test::relative_rms(chunks, expected), 32 * 0x1p-24);
}

// A written model reads back the same, with names that transformers has.
TEST_P(Trained, AWrittenModelReadsBackToTheSameBits) {
    TrainEngine engine(trainable_spec(model_.spec), options_of());
    engine.load(model_);
    std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(params.data(), nullptr, nullptr);
    const test::TempFolder written;
    write_huggingface(written.path(), engine.spec(),
                      param_views(engine.layout(), params.data(), DType::f32),
                      model_.tokenizer.get());
    const Model again = load_model(written.path());
    EXPECT_EQ(again.spec.family, model_.spec.family);
    EXPECT_EQ(again.spec.norm_eps, model_.spec.norm_eps);
    EXPECT_EQ(again.spec.context, model_.spec.context);
    for (int i = 0; i < model_.spec.layers; ++i) {
        EXPECT_EQ(again.spec.layer(i).mask, model_.spec.layer(i).mask) << "layer " << i;
    }
    EXPECT_EQ(again.spec.tied_embeddings, model_.spec.tied_embeddings);
    EXPECT_EQ(again.spec.rope.rotary, model_.spec.rope.rotary);
    EXPECT_EQ(rope_frequencies(again.spec.rope).inv_freq,
              rope_frequencies(model_.spec.rope).inv_freq);
    TrainEngine second(trainable_spec(again.spec), options_of());
    second.load(again);
    std::vector<float> reread(params.size());
    second.get_state(reread.data(), nullptr, nullptr);
    EXPECT_EQ(reread, params);
}

INSTANTIATE_TEST_SUITE_P(Families, Trained, ::testing::ValuesIn(kTrained), test::family_name);

ModelSpec small_spec() {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 64;
    spec.dim = 32;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.hidden = 64;
    spec.context = 64;
    spec.tied_embeddings = true;
    spec.rope.rotary = 8;
    return spec;
}

void put_random(TrainEngine& engine, int slot, int vocab) {
    const auto host = engine.ops().host_slot(slot);
    const std::size_t tokens = host.size() / 2;
    std::uint32_t x = 12345u + static_cast<std::uint32_t>(slot);
    for (std::size_t i = 0; i < tokens; ++i) {
        x = x * 1664525u + 1013904223u;
        host[i] = static_cast<std::int32_t>((x >> 8) % static_cast<std::uint32_t>(vocab));
    }
    for (std::size_t i = 0; i < tokens; ++i) host[tokens + i] = host[(i + 1) % tokens];
    engine.put(slot);
}

// GGUF's llama rotates neighbours, the trainer rotates halves: the rows of queries and keys are
// reordered, and the model must not change.
TEST(Training, AModelThatTurnsNeighboursGoesOnAsItWas) {
    auto gguf = std::make_shared<Model>(
        load_model(std::string(MR_SOURCE_DIR) + "/models/storyteller.gguf"));
    ASSERT_EQ(gguf->spec.rope.style, ops::RopeStyle::interleaved);
    TrainEngineOptions options = options_of();
    options.shape.sequences = 1;
    TrainEngine engine(trainable_spec(gguf->spec), options);
    engine.load(*gguf);
    const std::string story =
        "Once upon a time, in a houseboat on the river, there lived a funny little boy named Ben.";
    std::vector<std::int32_t> ids = gguf->tokenizer->encode(story);
    ASSERT_GE(ids.size(), static_cast<std::size_t>(kSeq + 1));
    const auto host = engine.ops().host_slot(0);
    std::copy_n(ids.data(), kSeq, host.data());
    std::copy_n(ids.data() + 1, kSeq, host.data() + kSeq);
    engine.put(0);
    const double ours = engine.evaluate(0) / kSeq;

    const std::unique_ptr<Engine> opened = make_engine(gguf, {.threads = 1, .max_logits = kSeq});
    Engine& reference = *opened;
    const BatchItem item{.seq = reference.cache().open(),
                         .tokens = std::span<const std::int32_t>(ids).first(kSeq),
                         .logits = BatchItem::Logits::all};
    std::vector<double> nll(kSeq);
    reference.cross_entropy(nll, reference.submit({&item, 1}),
                            std::span<const std::int32_t>(ids).subspan(1, kSeq));
    double expected = 0;
    for (const double loss : nll) expected += loss / kSeq;
    // The other path rounds activations to 8 bits for 8-bit weights.
    EXPECT_NEAR(ours, expected, 0.03 * expected);
    EXPECT_LT(expected, 4);  // a trained model: wrong rows would show
}

TEST(Training, LearnsOneBatchByHeart) {
    TrainEngine engine(small_spec(), options_of());
    engine.init(1);
    put_random(engine, 0, 64);
    double loss = 0;
    for (int step = 1; step <= 150; ++step) {
        engine.accumulate(0, 1.0 / (kSequences * kSeq));
        loss = engine.update({.lr = 0.01f, .weight_decay = 0, .clip = 1.0f, .step = step}).loss;
    }
    EXPECT_LT(loss, 0.01);
}

TEST(Training, AccumulatedHalvesAreOneWhole) {
    TrainEngineOptions whole = options_of();
    TrainEngineOptions half = options_of();
    half.shape.sequences = 1;
    TrainEngine a(small_spec(), whole), b(small_spec(), half);
    a.init(3);
    b.init(3);
    put_random(a, 0, 64);
    const auto all = a.ops().host_slot(0);
    const double scale = 1.0 / (kSequences * kSeq);
    a.accumulate(0, scale);
    for (std::size_t s = 0; s < 2; ++s) {
        const auto host = b.ops().host_slot(static_cast<int>(s));
        std::copy_n(all.data() + s * kSeq, kSeq, host.data());
        std::copy_n(all.data() + (2 + s) * kSeq, kSeq, host.data() + kSeq);
        b.put(static_cast<int>(s));
        b.accumulate(static_cast<int>(s), scale);
    }
    std::vector<float> one(static_cast<std::size_t>(a.layout().count)), two(one.size());
    a.read_grads(one);
    b.read_grads(two);
    EXPECT_LT(test::relative_rms(two, one), 32 * 0x1p-24);
    const auto x = a.update(recorded_adamw(1));
    const auto y = b.update(recorded_adamw(1));
    EXPECT_NEAR(x.loss, y.loss, 1e-6);
    EXPECT_NEAR(x.grad_norm, y.grad_norm, 1e-6 * x.grad_norm);
}

TEST(Training, GrainsAreAddedUpInABinaryTree) { test::every_grain_case(false); }

// Ranges tile the buffer, each within one unit, and blocks tile the ranges.
TEST(Training, RangesAreUnitsOfTheModel) {
    for (const char* const family : {"llama2", "gpt2", "gpt-neox", "qwen3"}) {
        const Model model = load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/" + family);
        const ParamLayout layout = param_layout(trainable_spec(model.spec));
        const std::vector<ParamRange> ranges = param_ranges(layout);
        std::int64_t at = 0;
        std::vector<int> parts(static_cast<std::size_t>(unit_count(layout.spec)));
        for (const ParamRange& range : ranges) {
            EXPECT_EQ(range.begin, at);
            EXPECT_TRUE(range.end <= layout.decayed || range.begin >= layout.decayed);
            ++parts[static_cast<std::size_t>(range.unit)];
            at = range.end;
            for (const ParamLayout::Entry& entry : layout.entries) {
                if (entry.offset < range.begin || entry.offset >= range.end) continue;
                const int unit = entry.at.layer >= 0                ? entry.at.layer + 1
                                 : entry.at.role == Role::embedding ? 0
                                 : entry.at.role == Role::positions ? 0
                                                                    : layout.spec.layers + 1;
                EXPECT_EQ(range.unit, unit);
            }
        }
        EXPECT_EQ(at, layout.count);
        for (const int count : parts) EXPECT_TRUE(count == 1 || count == 2);
        const std::vector<std::int64_t> cuts = block_cuts(ranges);
        EXPECT_EQ(cuts.front(), 0);
        EXPECT_EQ(cuts.back(), layout.count);
        for (std::size_t i = 1; i < cuts.size(); ++i) {
            EXPECT_GT(cuts[i], cuts[i - 1]);
            EXPECT_LE(cuts[i] - cuts[i - 1], kParamBlock);
        }
        for (const ParamRange& range : ranges) {
            EXPECT_NE(std::ranges::find(cuts, range.begin), cuts.end());
        }
    }
}

TEST(Training, AStepWithoutAFiniteGradientChangesNothing) {
    TrainEngine engine(small_spec(), options_of());
    engine.init(1);
    std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(params.data(), nullptr, nullptr);
    std::vector<float> broken = params;
    broken[3] = std::nanf("");
    engine.set_state(broken.data(), nullptr, nullptr);
    put_random(engine, 0, 64);
    const auto host = engine.ops().host_slot(0);
    host[0] = 0;  // the row with the NaN
    engine.accumulate(0, 1.0 / (kSequences * kSeq));
    EXPECT_TRUE(engine.update(recorded_adamw(1)).skipped);
    std::vector<float> after(params.size()), m(params.size()), v(params.size());
    engine.get_state(after.data(), m.data(), v.data());
    EXPECT_EQ(std::memcmp(after.data(), broken.data(), after.size() * sizeof(float)), 0);
    EXPECT_EQ(m, std::vector<float>(m.size()));
    // And the gradients are cleared: with good parameters the next step is as if nothing had
    // happened.
    engine.set_state(params.data(), nullptr, nullptr);
    engine.accumulate(0, 1.0 / (kSequences * kSeq));
    const auto result = engine.update(recorded_adamw(1));
    EXPECT_FALSE(result.skipped);
    EXPECT_TRUE(std::isfinite(result.loss));
}

TEST(Training, TargetsThatDoNotCountChangeNothing) {
    TrainEngine engine(small_spec(), options_of());
    engine.init(1);
    put_random(engine, 0, 64);
    const auto host = engine.ops().host_slot(0);
    std::fill_n(host.data() + 3 * kSeq, kSeq, -1);  // the second sequence's
    engine.accumulate(0, 1.0 / kSeq);
    std::vector<float> one(static_cast<std::size_t>(engine.layout().count)), two(one.size());
    engine.read_grads(one);
    engine.update(recorded_adamw(1));
    engine.init(1);
    std::fill_n(host.data() + kSeq, kSeq, 5);  // another second sequence
    engine.accumulate(0, 1.0 / kSeq);
    engine.read_grads(two);
    EXPECT_LT(test::relative_rms(one, two), 8 * 0x1p-24);
    std::vector<float> losses(kSequences * kSeq);
    engine.read_losses(losses);
    for (std::size_t i = kSeq; i < losses.size(); ++i) EXPECT_EQ(losses[i], 0);
}

TEST(Training, LayoutsHoldEveryParameterOnce) {
    for (const char* family : kTrained) {
        SCOPED_TRACE(family);
        const ModelSpec spec = open_huggingface(reference_folder(family), {}).spec;
        const ParamLayout layout = param_layout(spec);
        std::int64_t end = 0, sum = 0, more = 0;  // more: after the head
        for (const ParamLayout::Entry& entry : layout.entries) {
            EXPECT_GE(entry.offset, end);
            EXPECT_LT(entry.offset - end, kParamAlign + more);
            more = entry.at.role == Role::head || entry.at.role == Role::embedding
                       ? (head_rows(spec) - spec.vocab) * spec.dim
                       : 0;
            EXPECT_EQ(entry.offset < layout.decayed, is_matrix(entry.at.role));
            end = entry.offset + entry.shape.count();
            sum += entry.shape.count();
        }
        EXPECT_EQ(static_cast<std::uint64_t>(sum), spec.parameters());
        EXPECT_LE(end, layout.count);
    }
}

// No matrix of a GEMM has more rows than scratch is planned for: the head's are rounded
// up.
TEST(Training, NoMatrixIsWiderThanTheWidest) {
    for (const char* family : kTrained) {
        ModelSpec spec = open_huggingface(reference_folder(family), {}).spec;
        for (const int vocab : {spec.vocab, 50257, 40001}) {
            SCOPED_TRACE(std::string(family) + ", " + std::to_string(vocab));
            spec.vocab = vocab;
            const ParamLayout layout = param_layout(spec);
            std::vector<float> params(static_cast<std::size_t>(layout.count));
            const Weights views = param_views(layout, params.data(), DType::f32);
            const std::int64_t widest = widest_matrix(spec);
            EXPECT_LE(head_matrix(spec, views).dim(0), widest);
            EXPECT_GE(head_rows(spec), vocab);
            for (const LayerWeights& layer : views.layers) {
                EXPECT_LE(qkv_matrix(spec, layer).dim(0), widest);
                EXPECT_LE(gate_up_matrix(spec, layer).dim(0), widest);
                EXPECT_LE(layer.o.dim(0), widest);
                EXPECT_LE(layer.down.dim(0), widest);
            }
        }
    }
}

TEST(Training, NewParametersDependOnTheSeedAlone) {
    const ParamLayout layout = param_layout(small_spec());
    const auto params = [&](std::uint64_t seed, int threads) {
        TrainEngine engine(small_spec(), options_of(Recompute::none, threads));
        engine.init(seed);
        std::vector<float> out(static_cast<std::size_t>(layout.count), 7.0f);
        engine.get_state(out.data(), nullptr, nullptr);
        return out;
    };
    std::vector<float> a = params(1, 1);
    EXPECT_EQ(a, params(1, 3));
    EXPECT_NE(a, params(2, 1));
    const Weights w = param_views(layout, a.data(), DType::f32);
    double square = 0;
    for (std::int64_t i = 0; i < w.embedding.shape.count(); ++i) {
        square += std::pow(static_cast<double>(w.embedding.f32()[i]), 2);
    }
    const auto count = static_cast<double>(w.embedding.shape.count());
    // The relative standard error of a standard deviation from n draws is 1 / sqrt(2 n).
    EXPECT_NEAR(std::sqrt(square / count), 0.02, 4 * 0.02 / std::sqrt(2 * count));
    EXPECT_EQ(w.final_norm.f32()[0], 1.0f);
}

TEST(Training, WhatDoesNotFitIsRefusedWithWhatWould) {
    ModelSpec spec = small_spec();
    TrainEngineOptions options = options_of();
    options.shape.sequences = 1 << 24;
    const MemoryPlan plan = TrainEngine::plan(spec, options);
    EXPECT_GT(plan.total(), std::uint64_t{1} << 40);
    try {
        TrainEngine engine(spec, options);
        FAIL() << "it took " << plan.total() << " bytes";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        const std::string text = error.what();
        EXPECT_NE(text.find("--batch"), std::string::npos) << text;
        EXPECT_NE(text.find("--recompute full"), std::string::npos) << text;
    }
    // The less is kept, the smaller the plan.
    options.shape.sequences = 64;
    const auto total = [&](Recompute recompute) {
        options.recompute = recompute;
        return TrainEngine::plan(spec, options).total();
    };
    EXPECT_LT(total(Recompute::light), total(Recompute::none));
    EXPECT_LT(total(Recompute::full), total(Recompute::light));
}

}  // namespace
}  // namespace mr::model::train_test
