// Repacked weights: the same logits, correct byte counts.
#include "model/cpu/repack.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/engine.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "model/model_files.h"
#include "model/names.h"
#include "ops/linear/linear.h"
#include "support.h"

namespace mr::model {
namespace {

std::vector<float> logits_of(std::shared_ptr<const Model> model, std::size_t count) {
    EngineOptions options;
    options.threads = 2;
    options.max_logits = static_cast<int>(count);
    const std::unique_ptr<Engine> opened = make_engine(model, options);
    Engine& engine = *opened;
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < count; ++i)
        ids.push_back(static_cast<std::int32_t>((3 * i + 1) % 96));
    const BatchItem item{engine.cache().open(), ids, BatchItem::Logits::all};
    const Tensor logits = engine.submit({&item, 1});
    return {logits.f32(), logits.f32() + logits.shape.count()};
}

ModelSpec small(bool tied) {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 96;
    spec.dim = 64;
    spec.hidden = 128;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = spec.rope.rotary = 16;
    spec.context = 64;
    spec.tied_embeddings = tied;
    return spec;
}

TEST(Repack, SameLogits) {
    for (DType type : {DType::q8_0, DType::q4_0, DType::bf16}) {
        for (bool tied : {false, true}) {
            auto plain = std::make_shared<Model>(random_model(small(tied), type, 5));
            auto packed = std::make_shared<Model>(random_model(small(tied), type, 5));
            const std::uint64_t owned = packed->weights.owned_bytes;
            repack_weights(*packed, 2);
            const bool moved = ops::linear_fastest_type(type, 4) != type;
            EXPECT_EQ(packed->weights.layers[0].up.dtype, ops::linear_fastest_type(type, 4));
            EXPECT_EQ(packed->weights.embedding.dtype, type);
            // A tied head becomes a separate copy.
            EXPECT_EQ(packed->weights.owned_bytes,
                      owned + (moved && tied ? packed->weights.head.bytes() : 0));
            for (std::size_t count : {1, 3, 40}) {
                EXPECT_EQ(logits_of(packed, count), logits_of(plain, count))
                    << dtype_name(type) << ", tied " << tied << ", " << count << " tokens";
            }
        }
    }
}

TEST(Repack, MappedBecomesOwned) {
    const std::string bundled = std::string(MR_SOURCE_DIR) + "/models/storyteller.gguf";
    Model model = load_model(bundled);
    const std::uint64_t mapped = model.weights.mapped_bytes, owned = model.weights.owned_bytes;
    repack_weights(model, 1);
    if (ops::linear_fastest_type(DType::q8_0, 4) == DType::q8_0) {
        EXPECT_EQ(model.weights.mapped_bytes, mapped);
        return;
    }
    // All but the tied embedding, which stays mapped and is copied as the head.
    EXPECT_EQ(model.weights.mapped_bytes, model.weights.embedding.bytes());
    EXPECT_EQ(model.weights.owned_bytes, owned + mapped);
}

// A planned model has the types and bytes of the loaded one.
TEST(Repack, ThePlanIsWhatALoadedModelHolds) {
    TempFolder folder;
    TinyGguf gguf;
    gguf.tensors["blk.0.ffn_up.weight"].first = DType::q6_k;    // expanded, then repacked
    gguf.tensors["blk.0.ffn_down.weight"].first = DType::q8_0;  // mapped, then repacked
    gguf.write(folder / "mixed.gguf");
    for (const std::string& source :
         {std::string(MR_SOURCE_DIR) + "/models/storyteller.gguf", folder / "mixed.gguf",
          reference("gpt2"), reference("gpt-neox"), std::string("random:stories-42m:q4_0"),
          std::string("random:gpt2:q8_0")}) {
        SCOPED_TRACE(source);
        Model planned = planned_model(source), loaded = load_model(source);
        plan_repack(planned);
        repack_weights(loaded, 1);
        EXPECT_EQ(planned.weights.mapped_bytes, loaded.weights.mapped_bytes);
        EXPECT_EQ(planned.weights.owned_bytes, loaded.weights.owned_bytes);
        EXPECT_EQ(planned.weights.bytes_per_token(), loaded.weights.bytes_per_token());
        std::vector<RoleAt> roles = roles_of(loaded.spec);
        roles.push_back({Role::head});  // of a tied model too
        for (const RoleAt at : roles) {
            const Tensor& plan = role_slot(planned.weights, at);
            const Tensor& tensor = role_slot(loaded.weights, at);
            EXPECT_EQ(dtype_name(plan.dtype), dtype_name(tensor.dtype));
            EXPECT_TRUE(plan.shape == tensor.shape);
        }
    }
}

}  // namespace
}  // namespace mr::model
