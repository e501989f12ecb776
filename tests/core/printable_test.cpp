#include "core/printable.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/utf8.h"

namespace mr {
namespace {

TEST(Printable, ShowsTextAndEscapesWhatATerminalObeys) {
    EXPECT_EQ(printable("Grüße, 世界 🙂"), "Grüße, 世界 🙂");
    EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
    EXPECT_EQ(printable("\xC2\x9B"
                        "31m"),
              "\\u009b31m");  // C1: CSI in one character
    EXPECT_EQ(printable("\xE2\x80\xAEtxt.exe"), "\\u202etxt.exe");
    EXPECT_EQ(printable("\xE2\x81\xA6x\xE2\x81\xA9"), "\\u2066x\\u2069");
    EXPECT_EQ(printable("\xF3\xA0\x81\x81"), "\\U000e0041");
    EXPECT_EQ(printable("\xE2\x80\x8D"), "\xE2\x80\x8D");  // joins emoji and letters
}

TEST(Printable, WhatIsNoUtf8IsBytes) {
    EXPECT_EQ(printable("a\xFF"), "a\\xff");
    EXPECT_EQ(printable("\xC0\x80"), "\\xc0\\x80");           // overlong
    EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
    EXPECT_EQ(printable("\xE2\x82"), "\\xe2\\x82");           // cut short
    EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, IsCutBetweenCharacters) {
    EXPECT_EQ(printable("aéé", 5), "aéé");
    EXPECT_EQ(printable("aéé", 4), "aé...");
    EXPECT_EQ(printable("aéé", 3), "aé...");
    EXPECT_EQ(printable("世", 1), "...");
    for (std::size_t most = 0; most < 30; ++most) {
        const std::string shown = printable("世界🙂é世界🙂é世界🙂é", most);
        for (std::size_t i = 0; i < shown.size();) {
            const Utf8Char c = utf8_at(shown, i);
            ASSERT_TRUE(c.valid) << most;
            i += c.size;
        }
    }
    std::string accents;
    for (int i = 0; i < 1000; ++i) accents += "é";
    const std::string what = Error::input({.value = "x" + accents, .problem = "is long"}).what();
    EXPECT_NE(what.find("é...: is long"), std::string::npos) << what;
}

TEST(Printable, NamesAreListedUpToANumber) {
    const std::vector<std::string> names = {"a.txt", "b\x1b.txt", "c.txt"};
    EXPECT_EQ(listed(names, 3), "a.txt, b\\x1b.txt, c.txt");
    EXPECT_EQ(listed(names, 12), listed(names, 3));
    EXPECT_EQ(listed(names, 2), "a.txt, b\\x1b.txt and 1 more");
    EXPECT_EQ(listed(names, 1), "a.txt and 2 more");
    EXPECT_EQ(listed({}, 5), "");
}

// The tokenizers have their own decoder: both must agree.
TEST(Utf8, EveryCodeIsReadBack) {
    for (char32_t code = 0; code < 0x110000; ++code) {
        if (code >= 0xD800 && code < 0xE000) continue;
        std::string text;
        if (code < 0x80) {
            text = {static_cast<char>(code)};
        } else if (code < 0x800) {
            text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
        } else if (code < 0x10000) {
            text = {static_cast<char>(0xE0 | code >> 12),
                    static_cast<char>(0x80 | (code >> 6 & 63)),
                    static_cast<char>(0x80 | (code & 63))};
        } else {
            text = {
                static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
                static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
        }
        const Utf8Char c = utf8_at(text, 0);
        ASSERT_TRUE(c.valid && c.code == code && c.size == text.size())
            << static_cast<std::uint32_t>(code);
        for (std::size_t cut = 1; cut < text.size(); ++cut) {
            ASSERT_FALSE(utf8_at(std::string_view(text).substr(0, cut), 0).valid);
        }
    }
}

}  // namespace
}  // namespace mr
