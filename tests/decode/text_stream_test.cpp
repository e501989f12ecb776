#include "decode/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mr::decode {
namespace {

// A tokenizer whose tokens are bytes.
const text::Tokenizer& bytes() {
    static const auto tokenizer = text::Tokenizer::bytes(300);
    return *tokenizer;
}

struct Shown {
    std::string text;
    bool stopped = false;
};
// The shown part of the bytes of `text`; checks that only whole characters are shown.
Shown shown(const std::string& text, std::vector<std::string> stops) {
    TextStream stream(bytes(), std::move(stops), false);
    Shown out;
    for (const std::int32_t id : bytes().encode(text, {.add_special = false})) {
        const std::string piece = stream.push(id);
        EXPECT_TRUE(piece.empty() || (static_cast<unsigned char>(piece[0]) & 0xc0) != 0x80)
            << "a piece begins inside of a character";
        out.text += piece;
    }
    out.text += stream.finish();
    out.stopped = stream.stopped();
    return out;
}

TEST(TextStream, EndsBeforeTheFirstStopString) {
    EXPECT_EQ(shown("one two three", {"two"}).text, "one ");
    EXPECT_TRUE(shown("one two three", {"two"}).stopped);
    EXPECT_EQ(shown("abcabd", {"abd", "zzz"}).text, "abc");
    EXPECT_EQ(shown("aaab", {"aab"}).text, "a");
}

TEST(TextStream, WhatWasHeldBackComesAtTheEnd) {
    const Shown all = shown("one tw", {"two"});
    EXPECT_EQ(all.text, "one tw");
    EXPECT_FALSE(all.stopped);
    EXPECT_EQ(shown("abab", {"abac"}).text, "abab");
    EXPECT_EQ(shown("plain", {""}).text, "plain") << "an empty stop string stops nothing";
}

TEST(TextStream, CharactersStayWhole) {
    EXPECT_EQ(shown("a\xc3\xa9\xe2\x82\xac", {}).text, "a\xc3\xa9\xe2\x82\xac");
    EXPECT_EQ(shown("x\xe2\x82\xacy", {"\xe2\x82\xac"}).text, "x");
}

}  // namespace
}  // namespace mr::decode
