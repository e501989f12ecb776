#include "model/io/random.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/model_files.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

TEST(Random, KnownShapes) {
    const Model model = load_model("random:stories-42m:q8_0");
    EXPECT_EQ(model.format, "random");
    EXPECT_EQ(model.spec.layers, 8);
    EXPECT_EQ(model.weights.layers[0].q.dtype, DType::q8_0);
    EXPECT_EQ(model.tokenizer->vocab_size(), 32000);
    expect_shapes_match(model);
    EXPECT_EQ(load_model("random:stories-42m").weights.embedding.dtype, DType::bf16);
    const std::string unknown = error_of([] { load_model("random:llama-9"); });
    EXPECT_NE(unknown.find("tinyllama-1.1b"), std::string::npos) << unknown;
    const std::string type = error_of([] { load_model("random:gpt2:q6_k"); });
    EXPECT_NE(type.find("q6_k"), std::string::npos) << type;
}

TEST(Random, WeightsHaveTheDeviationTheyShould) {
    ModelSpec spec = load_model(reference("llama2")).spec;
    spec.dim = 96;
    spec.hidden = 100;  // rows of `down` are not whole blocks
    for (DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        SCOPED_TRACE(dtype_name(type));
        const Model model = random_model(spec, type, 7);
        const Tensor up = model.weights.layers[1].up;
        EXPECT_EQ(up.dtype, type);
        EXPECT_EQ(model.weights.layers[1].down.dtype, is_quantised(type) ? DType::f16 : type);
        std::vector<float> values(static_cast<std::size_t>(up.shape.count()));
        ops::dequantize(type, up.data, values.data(), up.shape.count());
        double squares = 0;
        for (float value : values) squares += static_cast<double>(value) * value;
        // 9600 draws: the standard deviation of their mean square is below 1%; q4_0 is off centre
        // by 1%.
        EXPECT_NEAR(squares / static_cast<double>(values.size()) * 96, 1.0, 0.05);
        const Model again = random_model(spec, type, 7);
        EXPECT_EQ(std::memcmp(again.weights.layers[1].up.data, up.data, up.bytes()), 0);
        const Model other = random_model(spec, type, 8);
        EXPECT_NE(std::memcmp(other.weights.layers[1].up.data, up.data, up.bytes()), 0);
    }
}
}  // namespace
}  // namespace mr::model
