#include "train/options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "model/io/source.h"
#include "model/io/write_model.h"
#include "model/train/params.h"
#include "model/train/train_engine.h"
#include "temp_folder.h"

namespace mr::train {
namespace {

TEST(TrainOptions, TheRateRisesAndFalls) {
    TrainOptions o;
    o.steps = 100;
    o.lr = 1;
    o.min_lr = 0.1;
    o.warmup = 10;
    EXPECT_DOUBLE_EQ(o.learning_rate(1), 0.1);
    EXPECT_DOUBLE_EQ(o.learning_rate(5), 0.5);
    EXPECT_DOUBLE_EQ(o.learning_rate(10), 1);
    EXPECT_NEAR(o.learning_rate(55), 0.55, 1e-12);  // the middle of the cosine
    EXPECT_DOUBLE_EQ(o.learning_rate(100), 0.1);
    for (int step = 11; step <= 100; ++step) {
        EXPECT_LT(o.learning_rate(step), o.learning_rate(step - 1));
    }
    o.schedule = "wsd";
    o.decay = 0.2;
    EXPECT_DOUBLE_EQ(o.learning_rate(79), 1);
    EXPECT_NEAR(o.learning_rate(90), 0.55, 1e-12);
    EXPECT_DOUBLE_EQ(o.learning_rate(100), 0.1);
    o.warmup = 90;  // of which the decay takes 10: no jump
    for (int step = 1; step <= 100; ++step) {
        EXPECT_LT(std::abs(o.learning_rate(step) - o.learning_rate(step - 1)), 0.05) << step;
    }
    EXPECT_DOUBLE_EQ(o.learning_rate(80), 80.0 / 90);
    EXPECT_DOUBLE_EQ(o.learning_rate(100), 0.1);
    o.warmup = 10;
    o.schedule = "constant";
    EXPECT_DOUBLE_EQ(o.learning_rate(100), 1);
    o.warmup = 0;
    EXPECT_DOUBLE_EQ(o.learning_rate(1), 1);
}

TEST(TrainOptions, ReadBackAsTheyWereWritten) {
    TrainOptions o;
    o.model.family = "qwen3";
    o.model.dim = 48;
    o.lr = 0.1 + 0.2;  // not a short number
    o.seed = ~std::uint64_t{0};
    o.steps = std::int64_t{1} << 40;
    o.prompt = "\"Once\"\n";
    o.cuda = true;
    o.bos = true;
    const auto text = options_json(o).dump();
    const auto read = [](const std::string& json) {
        return read_options(formats::JsonDocument::parse(json, "state.json").root(), "state.json");
    };
    const TrainOptions again = read(text);
    EXPECT_EQ(options_json(again).dump(), text);
    EXPECT_EQ(again.lr, o.lr);
    EXPECT_EQ(again.seed, o.seed);
    EXPECT_TRUE(again.bos);
    auto older = nlohmann::json::parse(text);  // from before the option existed
    older.erase("bos");
    older.erase("objective");
    older.erase("block");
    older.erase("diffusion_weight");
    EXPECT_FALSE(read(older.dump()).bos);
    auto broken = nlohmann::json::parse(text);
    broken["batch"] = 1e12;
    EXPECT_THROW(read(broken.dump()), Error);
    broken = nlohmann::json::parse(text);
    broken.erase("steps");
    EXPECT_THROW(read(broken.dump()), Error);
}

// A run resumes with the spec in its checkpoint's config.json: it must be the same.
TEST(TrainOptions, ANewModelOfEveryFamilyIsWhatItsConfigurationSays) {
    for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox"}) {
        SCOPED_TRACE(family);
        const NewModel wanted{.family = family, .dim = 64, .layers = 2, .heads = 2};
        const model::ModelSpec spec = new_spec(wanted, 100, 33);
        const model::ParamLayout layout = model::param_layout(spec);
        model::TrainEngine engine(spec, {.threads = 1, .shape = {.sequences = 1, .seq = 32}});
        engine.init(1);
        std::vector<float> params(static_cast<std::size_t>(layout.count));
        engine.get_state(params.data(), nullptr, nullptr);
        const test::TempFolder folder;
        model::write_huggingface(folder.path(), spec,
                                 model::param_views(layout, params.data(), DType::f32), nullptr);
        const model::Model read = model::load_model(folder.path());
        const model::ModelSpec& again = read.spec;
        EXPECT_EQ(again.family, spec.family);
        EXPECT_EQ(again.parameters(), spec.parameters());
        EXPECT_EQ(again.context, 33);
        EXPECT_EQ(again.norm, spec.norm);
        EXPECT_EQ(again.norm_eps, spec.norm_eps);
        EXPECT_EQ(again.residual, spec.residual);
        EXPECT_EQ(again.activation, spec.activation);
        EXPECT_EQ(again.qk_norm, spec.qk_norm);
        EXPECT_EQ(again.learned_positions, spec.learned_positions);
        EXPECT_EQ(again.tied_embeddings, spec.tied_embeddings);
        EXPECT_EQ(again.rope.rotary, spec.rope.rotary);
        EXPECT_EQ(again.rope.theta, spec.rope.theta);
        EXPECT_EQ(again.rope.style, spec.rope.style);
        EXPECT_EQ(again.mask.window, spec.mask.window);
        engine.init(2);  // other values, which load() replaces
        engine.load(read);
        std::vector<float> reread(params.size());
        engine.get_state(reread.data(), nullptr, nullptr);
        EXPECT_EQ(reread, params);
    }
}

TEST(TrainOptions, DiffusionTakesWholeBlocks) {
    TrainOptions good;
    good.objective = "diffusion";
    good.seq = 96;
    good.block = 32;
    good.validate();
    EXPECT_EQ(good.copies(), 1);
    EXPECT_EQ(good.counted_per_step(), good.tokens_per_step());
    good.diffusion_weight = "none";
    good.validate();
    EXPECT_EQ(2 * good.counted_per_step(), good.tokens_per_step());
    const auto refused = [&](void (*change)(TrainOptions&)) {
        TrainOptions o = good;
        change(o);
        try {
            o.validate();
            return std::string("nothing");
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            return std::string(error.what());
        }
    };
    EXPECT_NE(refused([](TrainOptions& o) { o.block = 0; }).find("--block = 0"), std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) {
                  o.block = 40;
              }).find("--seq = 96: is not a multiple of --block 40; give 80 or 120"),
              std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) { o.block = 192; }).find("more than --seq"),
              std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) { o.batch = 3; }).find("must be even"),
              std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) { o.diffusion_weight = "t"; }).find("1/t or none"),
              std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) { o.bos = true; }).find("--bos"), std::string::npos);
    EXPECT_NE(refused([](TrainOptions& o) { o.objective = "mlm"; }).find("ar or diffusion"),
              std::string::npos);
    const auto long_batch = [&](int block) {
        TrainOptions o = good;
        o.cuda = true;
        o.batch = 65536;
        o.block = block;
        o.seq = 2 * block;
        return o;
    };
    EXPECT_NO_THROW(long_batch(64).validate());
    EXPECT_THROW(long_batch(65).validate(), Error);  // the kernel for blocks takes no more than 64
}

}  // namespace
}  // namespace mr::train
