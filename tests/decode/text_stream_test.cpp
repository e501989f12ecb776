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

// All texts of two or three letters, all choices of the tokens with which no stop may end, and all
// pairs of stops. A letter is a token, so the stops that it completes are the text's endings.
TEST(TextStream, AStopEndsTheTextWhereItIsCompletedAndHeeded) {
    const auto words = [](const std::string& letters, std::size_t longest) {
        std::vector<std::string> out = {""};
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (out[i].size() == longest) continue;
            for (const char letter : letters) out.push_back(out[i] + letter);
        }
        return out;
    };
    struct Kind {
        std::string letters;
        std::size_t longest;
        std::vector<std::string> stops;
    };
    int late = 0;  // stops after one that was not heeded
    for (const Kind& kind : {Kind{"ab", 6, words("ab", 3)},
                             Kind{"abc", 4, {"ab", "abc", "b", "bc", "c", "ca", "cab", "abca"}}}) {
        for (const std::string& first : kind.stops) {
            for (const std::string& second : kind.stops) {
                for (const std::string& text : words(kind.letters, kind.longest)) {
                    for (unsigned heeded = 0; heeded < 1u << text.size(); ++heeded) {
                        std::string want = text, by;
                        bool ignored = false;
                        for (std::size_t n = 1; n <= text.size() && by.empty(); ++n) {
                            const std::string known = text.substr(0, n);
                            std::string ending;  // the one that begins first
                            for (const std::string& stop : {first, second}) {
                                if (known.ends_with(stop) && stop.size() > ending.size()) {
                                    ending = stop;
                                }
                            }
                            if (ending.empty()) continue;
                            if ((heeded >> (n - 1) & 1u) == 0) {
                                ignored = true;
                                continue;
                            }
                            by = ending;
                            want = known.substr(0, n - ending.size());
                        }
                        late += ignored && !by.empty();
                        TextStream stream(bytes(), {first, second}, false);
                        std::string got;
                        for (std::size_t i = 0; i < text.size(); ++i) {
                            got += stream.push(static_cast<unsigned char>(text[i]),
                                               (heeded >> i & 1u) != 0);
                        }
                        got += stream.finish();
                        ASSERT_TRUE(got == want && stream.stopped() == !by.empty() &&
                                    stream.stopped_by() == by)
                            << "'" << text << "', stops '" << first << "' and '" << second
                            << "', heeded " << heeded << ": '" << got << "' by '"
                            << stream.stopped_by() << "', not '" << want << "' by '" << by << "'";
                    }
                }
            }
        }
    }
    EXPECT_GT(late, 1000);
}

// The rest of a character that never came belongs to the last token.
TEST(TextStream, TheEndHeedsAsTheLastTokenDid) {
    for (const bool heed : {false, true}) {
        TextStream stream(bytes(), {"\xef\xbf\xbd"}, false);
        EXPECT_EQ(stream.push(0xc3, heed), "");
        EXPECT_EQ(stream.finish(), heed ? "" : "\xef\xbf\xbd");
        EXPECT_EQ(stream.stopped(), heed);
    }
}

TEST(TextStream, CharactersStayWhole) {
    EXPECT_EQ(shown("a\xc3\xa9\xe2\x82\xac", {}).text, "a\xc3\xa9\xe2\x82\xac");
    EXPECT_EQ(shown("x\xe2\x82\xacy", {"\xe2\x82\xac"}).text, "x");
}

}  // namespace
}  // namespace mr::decode
