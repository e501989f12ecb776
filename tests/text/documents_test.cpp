// Cutting a text into documents, marks before it, and bytes that are no UTF-8.
#include "text/documents.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace mr::text {
namespace {

std::vector<std::string> documents_of(std::string_view text, std::string_view separator) {
    std::vector<std::string> out;
    Documents documents(text, separator);
    for (std::string_view document; documents.next(document);) out.emplace_back(document);
    EXPECT_EQ(documents.left(), 0u);
    return out;
}

TEST(Documents, EndWithoutTheirLineEnd) {
    using List = std::vector<std::string>;
    EXPECT_EQ(documents_of("a\n|\nb\n|\n", "|"), (List{"a", "b"}));
    EXPECT_EQ(documents_of("a\r\n|\r\nb\r\n|\r\n", "|"), (List{"a", "b"}));
    EXPECT_EQ(documents_of("a\r\nb\r\n", "\n"), (List{"a", "b"}));
    EXPECT_EQ(documents_of("a\r\nb\r\n|c\n\n|d\r\r\n", "|"), (List{"a\r\nb", "c\n", "d\r"}));
    EXPECT_EQ(documents_of("||\n|\r\n| |", "|"), List{});
    EXPECT_EQ(documents_of("", "|"), List{});
    EXPECT_EQ(documents_of("a", "|"), List{"a"});
    EXPECT_EQ(documents_of(" a\r\n", ""), List{" a\r\n"});  // one document, unchanged
}

// The same texts with either line end are the same documents, where these are lines or words.
TEST(Documents, AreTheSameWithEitherLineEnd) {
    std::mt19937 random(1);
    for (int i = 0; i < 2000; ++i) {
        std::string unix, dos;
        for (std::uint32_t n = random() % 12; n > 0; --n) {
            const char* const parts[] = {"a", "word", "\n", "\n<e>\n", "<e>", " "};
            const std::string part = parts[random() % 6];
            unix += part;
            for (const char c : part) dos += c == '\n' ? "\r\n" : std::string(1, c);
        }
        for (const char* separator : {"<e>", "\n"}) {
            std::vector<std::string> want = documents_of(unix, separator), got;
            for (std::string document : documents_of(dos, separator)) {
                std::string plain;
                for (const char c : document) {
                    if (c != '\r') plain += c;
                }
                got.push_back(plain);
            }
            // "\r" alone between separators of "\n" is no document, as nothing is none.
            EXPECT_EQ(got, want) << testing::PrintToString(unix);
        }
    }
}

TEST(Documents, AMarkIsNoText) {
    EXPECT_EQ(without_mark("\xef\xbb\xbfText"), "Text");
    EXPECT_EQ(without_mark("\xef\xbb\xbf"), "");
    EXPECT_EQ(without_mark("\xef\xbb"), "\xef\xbb");
    EXPECT_EQ(without_mark(""), "");
    EXPECT_EQ(without_mark("a\xef\xbb\xbf"), "a\xef\xbb\xbf");
}

// By the table of the Unicode standard (3-7), unlike the decoder.
bool well_formed(std::string_view text) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const auto in = [](unsigned b, unsigned low, unsigned high) { return low <= b && b <= high; };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned a = byte(i), b = byte(i + 1);
        const bool c = in(byte(i + 2), 0x80, 0xbf), d = in(byte(i + 3), 0x80, 0xbf);
        if (a < 0x80) {
            i += 1;
        } else if (in(a, 0xc2, 0xdf) && in(b, 0x80, 0xbf)) {
            i += 2;
        } else if (in(a, 0xe0, 0xef) && c &&
                   in(b, a == 0xe0 ? 0xa0 : 0x80, a == 0xed ? 0x9f : 0xbf)) {
            i += 3;
        } else if (in(a, 0xf0, 0xf4) && c && d &&
                   in(b, a == 0xf0 ? 0x90 : 0x80, a == 0xf4 ? 0x8f : 0xbf)) {
            i += 4;
        } else {
            return false;
        }
    }
    return true;
}

TEST(FirstFault, IsFoundAtAnyPlace) {
    EXPECT_FALSE(first_fault(""));
    for (std::size_t size = 1; size < 40; ++size) {
        const std::string text(size, 'a');
        EXPECT_FALSE(first_fault(text));
        for (std::size_t at = 0; at < size; ++at) {
            std::string wrong = text;
            wrong[at] = '\xe9';  // Latin-1's e with an accent
            EXPECT_EQ(first_fault(wrong), at);
        }
    }
}

TEST(FirstFault, AgreesWithTheStandard) {
    std::mt19937 random(2);
    int good = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string text;
        for (std::uint32_t n = random() % 8; n > 0; --n) {
            const char* const parts[] = {"a",        "aaaaaaaaa",    "\xc3\xa9", "\xe2\x82\xac",
                                         "\xed\xa0", "\xf0\x9f\x98\x80", "\x80",     "\xc0"};
            // Mostly whole characters, sometimes any byte.
            if (random() % 8) {
                const char* const whole[] = {parts[0], parts[1], parts[2], parts[3], parts[5]};
                text += whole[random() % 5];
            } else if (random() % 2) {
                text += parts[random() % 8];
            } else {
                text += static_cast<char>(random());
            }
        }
        const auto fault = first_fault(text);
        EXPECT_EQ(!fault, well_formed(text)) << testing::PrintToString(text);
        EXPECT_TRUE(well_formed(text.substr(0, fault.value_or(0))));
        good += !fault;
    }
    EXPECT_GT(good, 4000);
    EXPECT_LT(good, 18000);
}

}  // namespace
}  // namespace mr::text
