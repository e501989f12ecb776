// The mask token, found or added.
#include "train/mask_token.h"

#include <gtest/gtest.h>

#include "core/mapped_file.h"
#include "train/shards.h"

namespace mr::train {
namespace {

std::string reference(const std::string& family) {
    return std::string(MR_SOURCE_DIR) + "/tests/reference/" + family + "/tokenizer.json";
}

TEST(MaskToken, IsAddedBehindTheOthers) {
    for (const char* family : {"gpt2", "llama2"}) {
        SCOPED_TRACE(family);
        const std::string file = reference(family), json = read_text_file(file);
        const auto before = text::Tokenizer::from_json(json, file);
        const MaskToken mask = mask_token(before, json);
        EXPECT_EQ(mask.id, before->vocab_size());
        EXPECT_EQ(mask.tokenizer->vocab_size(), mask.id + 1);
        EXPECT_TRUE(mask.tokenizer->is_special(mask.id));
        // The written tokenizer reads back the same, and is not extended a second time.
        const auto again = text::Tokenizer::from_json(mask.json, file);
        EXPECT_EQ(tokenizer_hash(*again), tokenizer_hash(*mask.tokenizer));
        EXPECT_EQ(mask_token(again, mask.json).id, mask.id);
        EXPECT_EQ(mask_token(again, mask.json).json, mask.json);
        // Other texts keep their ids.
        const std::string text = "Once upon a time, <|endoftext|> a bear.";
        for (const auto& tokenizer : {mask.tokenizer, again}) {
            EXPECT_EQ(tokenizer->encode(text), before->encode(text));
            const auto ids = tokenizer->encode("a<|mask|>");
            EXPECT_EQ(ids.back(), mask.id);
            EXPECT_EQ(tokenizer->decode(ids, true), before->decode(before->encode("a"), true));
        }
    }
}

}  // namespace
}  // namespace mr::train
