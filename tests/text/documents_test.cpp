// Cutting a text into documents, and marks before it.
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

}  // namespace
}  // namespace mr::text
