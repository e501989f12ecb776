// Heads without an attention backward are refused before memory or a device is used.
#include "model/train/train_ops.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "model/train/train_engine.h"

namespace mr::model {
namespace {

ModelSpec with_heads_of(int size) {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 64;
    spec.dim = 2 * size;
    spec.layers = 1;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = size;
    spec.hidden = 64;
    spec.context = 64;
    spec.rope.rotary = size;
    return spec;
}

// The error of the check; "" if there is none.
std::string refusal(int size, bool cuda) {
    try {
        require_trainable_heads(with_heads_of(size), cuda);
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        // Every engine makes the same check, with and without a GPU.
        try {
            TrainEngine::plan(with_heads_of(size), {.cuda = cuda, .shape = {}});
            ADD_FAILURE() << "planned with heads of " << size;
        } catch (const Error& planned) {
            EXPECT_STREQ(planned.what(), error.what());
        }
        return error.what();
    }
}

TEST(TrainOps, HeadsThatCannotBeTrainedAreRefused) {
    for (const int size : {8, 24, 128}) {
        EXPECT_EQ(refusal(size, false), "");
        EXPECT_EQ(refusal(size, true), "");
    }
    for (const int size : {4, 12, 264}) {
        for (const bool cuda : {false, true}) {
            const std::string said = refusal(size, cuda);
            EXPECT_NE(said.find("head size = " + std::to_string(size)), said.npos) << said;
            EXPECT_NE(said.find(cuda ? "up to 128" : "up to 256"), said.npos) << said;
            EXPECT_EQ(said.find("--device cpu"), said.npos) << said;
        }
    }
    // The CPU supports more sizes.
    EXPECT_EQ(refusal(256, false), "");
    EXPECT_NE(refusal(136, true).find("--device cpu"), std::string::npos);
}

}  // namespace
}  // namespace mr::model
