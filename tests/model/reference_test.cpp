// Every family compared with logits of transformers in f64 (tests/reference).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "families.h"
#include "model/engine.h"
#include "model/io/convert.h"
#include "model/model.h"
#include "support.h"
#include "temp_folder.h"

namespace mr::model {
namespace {

std::vector<float> run(const std::string& path, const std::vector<std::int32_t>& ids, int chunk) {
    auto model = std::make_shared<const Model>(load_model(path));
    EngineOptions options;
    options.threads = 2;
    options.max_batch = chunk;
    options.max_logits = chunk;
    const std::unique_ptr<Engine> opened = make_engine(model, options);
    Engine& engine = *opened;
    const SeqId seq = engine.cache().open();
    std::vector<float> out;
    for (std::size_t i = 0; i < ids.size(); i += static_cast<std::size_t>(chunk)) {
        const std::size_t count = std::min(ids.size() - i, static_cast<std::size_t>(chunk));
        const BatchItem item{seq, {ids.data() + i, count}, BatchItem::Logits::all};
        const Tensor logits = engine.submit({&item, 1});
        out.insert(out.end(), logits.f32(), logits.f32() + logits.shape.count());
    }
    return out;
}

float largest(const std::vector<float>& values) {
    float most = 0;
    for (float value : values) most = std::max(most, std::fabs(value));
    return most;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float most = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        const float difference = std::fabs(a[i] - b[i]);
        if (std::isnan(difference)) return difference;  // fails any limit
        most = std::max(most, difference);
    }
    return most;
}

// Each layer rounds in reductions of dim, hidden and the sequence's length; errors of one layer are
// amplified to the logits by at most the logits' own size, and add up over layers.
float f32_tolerance(const ModelSpec& spec, std::size_t length, float scale) {
    const float eps = std::numeric_limits<float>::epsilon();
    const auto reductions =
        static_cast<float>(3 * spec.dim + spec.q_dim() + spec.hidden) + static_cast<float>(length);
    return eps * reductions * static_cast<float>(spec.layers) * scale;
}

// Pieces into which a text may be cut without changing its bits.
std::vector<int> pieces_of(const ModelSpec& spec) {
    if (!spec.diffusion) return {1, 7};
    if (spec.diffusion->block == 0) return {};
    return {spec.diffusion->block, 2 * spec.diffusion->block};
}

class Reference : public testing::TestWithParam<const char*> {};

TEST_P(Reference, LogitsOfTheFolder) {
    const std::string folder = test::reference(GetParam());
    const test::Expected expected = test::read_expected(folder);
    const ModelSpec spec = load_model(folder).spec;
    const float tolerance = f32_tolerance(spec, expected.ids.size(), largest(expected.logits));
    const std::vector<float> whole = run(folder, expected.ids, 64);
    EXPECT_LE(largest_difference(whole, expected.logits), tolerance);
    // Cut into single tokens and into odd chunks, or into blocks: the same bits.
    for (const int piece : pieces_of(spec)) EXPECT_EQ(run(folder, expected.ids, piece), whole);
}

TEST_P(Reference, SameLogitsThroughGguf) {
    const std::string folder = test::reference(GetParam());
    const test::Expected expected = test::read_expected(folder);
    const ModelSpec spec = load_model(folder).spec;
    const test::TempFolder temp;
    const float scale = largest(expected.logits);
    for (DType type : {DType::f32, DType::f16, DType::bf16}) {  // the fixtures are exact in these
        const std::string file = temp / (std::string(dtype_name(type)) + ".gguf");
        convert_model(folder, file, {.type = type, .tokenizer = {}, .progress = {}});
        EXPECT_LE(largest_difference(run(file, expected.ids, 64), expected.logits),
                  f32_tolerance(spec, expected.ids.size(), scale))
            << dtype_name(type);
    }
    // In q8_0 the weights are exact, too; the difference is activations rounded to 1/254 of their
    // block's largest. The largest of 32 normal numbers is about 2.1 sigma, and the rounding error
    // of a step is 1/sqrt(12) of it: each of the 7 GEMMs of a layer and the LM head adds noise of
    // 2.1 / 127 / sqrt(12) of its output, independent of the others. Softmax and gates may amplify
    // it; these random models are sharper than trained ones, so a factor of 3 is allowed for that.
    // A wrong weight, scale or order would show as noise of the size of the logits themselves.
    const std::string file = temp / "q8_0.gguf";
    convert_model(folder, file, {.type = DType::q8_0, .tokenizer = {}, .progress = {}});
    const std::vector<float> logits = run(file, expected.ids, 64);
    const double products = 7.0 * spec.layers + 1;
    EXPECT_LE(test::relative_rms(logits, expected.logits),
              3 * 2.1 / 127 / std::sqrt(12.0) * std::sqrt(products));
    for (const int piece : pieces_of(spec)) EXPECT_EQ(run(file, expected.ids, piece), logits);
}

TEST_P(Reference, SameLogitsThroughSafetensorsAgain) {
    const std::string folder = test::reference(GetParam());
    const test::Expected expected = test::read_expected(folder);
    const test::TempFolder temp;
    convert_model(folder, temp / "a.gguf", {.type = DType::f32, .tokenizer = {}, .progress = {}});
    convert_model(temp / "a.gguf", temp / "back",
                  {.type = DType::f32, .tokenizer = {}, .progress = {}});
    EXPECT_LE(
        largest_difference(run(temp / "back", expected.ids, 64), expected.logits),
        f32_tolerance(load_model(folder).spec, expected.ids.size(), largest(expected.logits)));
}

INSTANTIATE_TEST_SUITE_P(Families, Reference, testing::ValuesIn(test::kFamilies),
                         test::family_name);
INSTANTIATE_TEST_SUITE_P(Diffusion, Reference, testing::ValuesIn(test::kDiffusionFamilies),
                         test::family_name);

}  // namespace
}  // namespace mr::model
