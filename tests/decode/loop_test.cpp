#include "decode/loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/io/random.h"

namespace mr::decode {
namespace {

// The pool is larger than the table, so that a sequence could run past it.
TEST(DecodeLoop, EndsWhereATableOfPositionsDoes) {
    model::ModelSpec spec = model::random_shape("random:gpt2").first;
    spec.layers = 1;
    spec.dim = spec.hidden = 32;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = 16;
    spec.vocab = 300;
    spec.context = 20;
    const auto model =
        std::make_shared<const model::Model>(model::random_model(spec, DType::f32, 3));
    model::EngineOptions options;
    options.threads = 1;
    options.max_sequences = 2;
    const std::unique_ptr<model::Engine> opened = model::make_engine(model, options);
    model::Engine& engine = *opened;
    const model::SeqId seq = engine.cache().open();
    const std::vector<std::int32_t> prompt(17, 5);
    const model::BatchItem item{seq, prompt, model::BatchItem::Logits::last};
    decode::DecodeRow row;
    row.seq = seq;
    row.most = 10;
    DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
    for (int i = 0; i < 4; ++i) loop.next();  // three are fed back, at 17, 18 and 19
    EXPECT_EQ(engine.cache().length(seq), 20);
    try {
        loop.next();
        FAIL() << "there is no position 20";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find("20"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace mr::decode
