// Characters without a token: bytes, `unk`, and how they print.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/tokenizer.h"

namespace mr::text {
namespace {

using Ids = std::vector<std::int32_t>;

// A SentencePiece vocabulary: 0 <unk>, 1 <0xC3>, 2 <0xA9>, 3 the space, 4 a, 5 b.
Tokenizer::Ptr small(const std::string& added, bool byte_fallback, bool fuse_unk) {
    const std::string json = fmt::format(
        R"({{"added_tokens": [{{"id": 0, "content": "<unk>", "special": true}}{}],
             "normalizer": {{"type": "Sequence", "normalizers": [
                 {{"type": "Prepend", "prepend": "▁"}},
                 {{"type": "Replace", "pattern": {{"String": " "}}, "content": "▁"}}]}},
             "model": {{"type": "BPE", "unk_token": "<unk>", "byte_fallback": {}, "fuse_unk": {},
                 "vocab": {{"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "▁": 3, "a": 4, "b": 5}},
                 "merges": []}}}})",
        added, byte_fallback, fuse_unk);
    return Tokenizer::from_json(json, "small.json");
}

TEST(Fallback, ToBytesThatAreAddedTokensToo) {
    for (const bool special : {false, true}) {
        const auto tokenizer = small(
            fmt::format(R"(, {{"id": 1, "content": "<0xC3>", "special": {0}, "normalized": false}},
                           {{"id": 2, "content": "<0xA9>", "special": {0}, "normalized": false}})",
                        special),
            true, true);
        EXPECT_EQ(tokenizer->encode("aé b"), (Ids{3, 4, 1, 2, 3, 5}));
        EXPECT_EQ(tokenizer->decode(Ids{3, 4, 1, 2, 3, 5}), "aé b");
        // Spelled out, they are the added tokens.
        EXPECT_EQ(tokenizer->encode("a<0xC3>"), (Ids{3, 4, 1}));
        EXPECT_EQ(tokenizer->is_special(1), special);
    }
    // Bytes that are only added tokens are not used for fallback.
    const auto tokenizer = small(
        R"(, {"id": 6, "content": "<0xE6>", "special": false, "normalized": false})", true, true);
    EXPECT_EQ(tokenizer->encode("æ"), (Ids{3, 0}));
}

TEST(Fallback, UnknownCharactersAreOneOrEachItsOwn) {
    const auto fused = small("", false, true), single = small("", false, false);
    EXPECT_EQ(fused->encode("zzéa日本"), (Ids{3, 0, 4, 0}));
    EXPECT_EQ(single->encode("zzéa日本"), (Ids{3, 0, 0, 0, 4, 0, 0}));
    EXPECT_EQ(fused->encode("z z"), (Ids{3, 0, 3, 0}));
    // A run longer than the words that are cached.
    EXPECT_EQ(fused->encode(std::string(200, 'z')), (Ids{3, 0}));
    EXPECT_EQ(single->encode(std::string(200, 'z')).size(), 201u);
}

// No space was added after an `unk`, so none is removed.
TEST(Fallback, TheSpaceAfterAnUnknownCharacterStays) {
    const auto tokenizer = small("", false, true);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("az b"), true), "a b");
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("z b"), true), " b");
}

// SentencePiece cannot distinguish its mark for a space from a space.
TEST(Fallback, TheMarkOfASpaceIsASpace) {
    const auto tokenizer = small("", true, true);
    EXPECT_EQ(tokenizer->encode("a▁b"), tokenizer->encode("a b"));
    EXPECT_EQ(tokenizer->encode("▁"), tokenizer->encode(" "));
}

}  // namespace
}  // namespace mr::text
