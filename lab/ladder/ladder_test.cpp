// The parts that need no GPU: the plain forward equals the engine's, and the check finds errors.
#include "lab/ladder/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "model/io/random.h"

namespace mr::ladder {
namespace {

model::ModelSpec tiny(ops::RopeStyle style) {
    model::ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 97;
    spec.dim = 64;
    spec.layers = 3;
    spec.heads = 8;
    spec.kv_heads = 2;
    spec.head_dim = 8;
    spec.hidden = 100;  // not a whole number of sixteens, nor of blocks
    spec.context = 64;
    spec.rope.rotary = 8;
    spec.rope.style = style;
    return spec;
}

ModelPtr tiny_model(ops::RopeStyle style, DType type) {
    return std::make_shared<const model::Model>(model::random_model(tiny(style), type, 5));
}

Options quick() {
    Options options;
    options.tokens = 4;
    options.repetitions = 1;
    options.check = 6;
    options.threads = 2;
    return options;
}

TEST(Ladder, ThePlainForwardIsTheEngines) {
    for (const auto style : {ops::RopeStyle::half, ops::RopeStyle::interleaved}) {
        for (const DType type : {DType::f32, DType::bf16, DType::q8_0}) {
            const Ladder ladder = climb(tiny_model(style, type), quick());
            ASSERT_EQ(ladder.rungs.size(), 5u);
            EXPECT_TRUE(ladder.rungs[0].reference);
            EXPECT_EQ(ladder.rungs[2].id, "host");
            EXPECT_EQ(ladder.rungs[2].to_device, 0);
            // The second process multiplies as the plain forward does, and is sent something.
            for (const std::size_t i : {3, 4}) {
                EXPECT_EQ(ladder.rungs[i].id, "process");
                EXPECT_EQ(ladder.rungs[i].check.largest, ladder.rungs[2].check.largest);
                EXPECT_GT(ladder.rungs[i].to_device, 0);
                EXPECT_EQ(ladder.rungs[i].to_host, ladder.rungs[3].to_host);
            }
            EXPECT_LT(ladder.rungs[4].to_device, ladder.rungs[3].to_device / 4);
            for (std::size_t i = 1; i < ladder.rungs.size(); ++i) {
                const Rung& rung = ladder.rungs[i];
                SCOPED_TRACE(rung.id);
                EXPECT_EQ(rung.check.failed, "");
                EXPECT_EQ(rung.check.same_tokens, 6);
                EXPECT_LE(rung.check.largest, rung.check.largest_limit);
                EXPECT_LT(rung.check.largest_limit, 1e-3);
                EXPECT_GT(rung.tokens_per_second, 0);
                EXPECT_GT(rung.gain, 0);
            }
            EXPECT_EQ(ladder.absent.size(), 11u);
            EXPECT_TRUE(ladder.passed());
        }
    }
}

// Every product is too large by a thousandth.
class WrongMatmul final : public Matmul {
  public:
    void multiply(float* out, const float* x, const float* w, int n, int k) override {
        right_.multiply(out, x, w, n, k);
        for (int i = 0; i < n; ++i) out[i] *= 1.001f;
    }

  private:
    HostMatmul right_{1};
};

TEST(Ladder, TheCheckFindsWhatIsWrong) {
    ThreadPool pool(1);
    const ModelPtr model = as_type(*tiny_model(ops::RopeStyle::half, DType::f32), DType::f32, pool);
    const std::vector<std::int32_t> prompt{1, 2, 3};
    PlainDecoder right(model, std::make_unique<HostMatmul>(1), prompt, 16, false);
    PlainDecoder wrong(model, std::make_unique<WrongMatmul>(), prompt, 16, false);
    const Drawn good = right.draw(5);
    const auto failed = [&](const Drawn& drawn, const Logits& expected, bool by_rms) {
        Check check;
        check.by_rms = by_rms;
        compare(check, model->spec, drawn, expected);
        return check.failed;
    };
    EXPECT_EQ(failed(good, good.logits, false), "");
    const Drawn bad = wrong.draw(5);
    EXPECT_NE(failed(bad, good.logits, false), "");

    Drawn other = good;
    other.tokens[2] = (other.tokens[2] + 1) % model->spec.vocab;
    EXPECT_NE(failed(other, good.logits, false), "");
    other = good;
    other.repeatable = false;
    EXPECT_NE(failed(other, good.logits, false), "");

    // Logits of other weights exceed the rounding error of bf16.
    Logits shifted = good.logits;
    for (auto& row : shifted) std::rotate(row.begin(), row.begin() + 1, row.end());
    EXPECT_EQ(failed(good, good.logits, true), "");
    EXPECT_NE(failed(good, shifted, true), "");
    other = good;
    other.logits[0][7] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NE(failed(other, good.logits, false), "");
    EXPECT_NE(failed(other, good.logits, true), "");
}

TEST(Ladder, OnlyThePlainLlamaIsTaken) {
    model::ModelSpec spec = tiny(ops::RopeStyle::half);
    spec.qk_norm = true;
    const model::Model model = model::random_model(spec, DType::f32, 1);
    try {
        require_plain(model);
        FAIL() << "norms of q and k were taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("norms of q and k"), std::string::npos);
    }
}

TEST(Ladder, RungsAreChosen) {
    for (const char* good : {"all", "0", "host", "0,host,4-9", "3-3"}) {
        EXPECT_NO_THROW(check_rungs(good)) << good;
    }
    for (const char* bad : {"", "10", "4-", "-1", "8-4", "0,", "a", "0 1", "1-10"}) {
        EXPECT_THROW(check_rungs(bad), Error) << bad;
    }
    Options options = quick();
    options.rungs = "host,8-9";
    const Ladder ladder = climb(tiny_model(ops::RopeStyle::half, DType::f32), options);
    ASSERT_EQ(ladder.rungs.size(), 1u);
    EXPECT_EQ(ladder.rungs[0].id, "host");
    ASSERT_EQ(ladder.absent.size(), 3u);
    EXPECT_EQ(ladder.absent[0].name, "one kernel");
}

// Casts keep what the type can hold, and fall back where rows are not whole blocks.
TEST(Ladder, WeightsChangeTheirType) {
    ThreadPool pool(2);
    const ModelPtr from = tiny_model(ops::RopeStyle::half, DType::bf16);
    const ModelPtr f32 = as_type(*from, DType::f32, pool);
    const ModelPtr back = as_type(*as_type(*f32, DType::bf16, pool), DType::f32, pool);
    EXPECT_TRUE(same_weights(*f32, *back));
    const ModelPtr q8 = as_type(*f32, DType::q8_0, pool);
    EXPECT_EQ(q8->weights.layers[0].down.dtype, DType::f16);  // 100 columns
    EXPECT_FALSE(same_weights(*f32, *as_type(*q8, DType::f32, pool)));
    EXPECT_EQ(bytes_as(*from, DType::f32), f32->weights.owned_bytes);
}

}  // namespace
}  // namespace mr::ladder
