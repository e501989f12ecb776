#include "text/unicode.h"

#include <gtest/gtest.h>

namespace mr::text {
namespace {

TEST(Unicode, Nfc) {
    const std::pair<const char*, const char*> cases[] = {
        {"plain", "plain"},
        {"e\u0301", "\u00e9"},
        {"a\u0323\u0302", "\u1ead"},  // marks of two classes, in order
        {"a\u0302\u0323", "\u1ead"},  // and out of order
        {"\u212b", "\u00c5"},         // a singleton
        {"\u0958", "\u0915\u093c"},   // excluded from composition
        {"\u1100\u1161\u11a8", "\uac01"},
        {"\uac00\u11a8", "\uac01"},
        {"a\u0301\u0301", "\u00e1\u0301"},  // the second is blocked
        {"\u0301a", "\u0301a"},
        {"\xff"
         "e\u0301\xe2\x82",
         "\xff\u00e9\xe2\x82"},  // broken bytes stay
    };
    for (const auto& [text, expected] : cases) EXPECT_EQ(nfc(text), expected);
}

TEST(Unicode, Classes) {
    EXPECT_EQ(class_of('a'), CharClass::letter);
    EXPECT_EQ(class_of('_'), CharClass::other);
    EXPECT_EQ(class_of(0x3000), CharClass::space);
    EXPECT_EQ(class_of(0x200B), CharClass::other);  // zero width space is no White_Space
    EXPECT_EQ(class_of(0x2167), CharClass::number);
    EXPECT_EQ(class_of(0x0301), CharClass::other);
    EXPECT_EQ(class_of(0x20000), CharClass::letter);
    EXPECT_EQ(class_of(kBadByte + 0xFF), CharClass::other);
    for (char32_t c = 0; c < 128; ++c) EXPECT_EQ(class_of(c), class_of_slow(c)) << unsigned(c);
}

TEST(Unicode, WalksAnyBytes) {
    EXPECT_EQ(char_at("\xC0\x80", 0).size, 1u);          // overlong
    EXPECT_EQ(char_at("\xED\xA0\x80", 0).size, 1u);      // a surrogate
    EXPECT_EQ(char_at("\xF4\x90\x80\x80", 0).size, 1u);  // past the last code point
    EXPECT_EQ(char_at("\xF4\x8F\xBF\xBF", 0).code, 0x10FFFFu);
    EXPECT_EQ(char_at("\xE2\x82", 0).code, kBadByte + 0xE2);
    EXPECT_EQ(incomplete_tail("a\xE2\x82"), 2u);
    EXPECT_EQ(incomplete_tail("a\xE2\x82\xAC"), 0u);
    EXPECT_EQ(incomplete_tail("\x80\x80\x80"), 0u);
    EXPECT_EQ(incomplete_tail("\xED\xA0"), 0u);
    EXPECT_EQ(replace_invalid("a\xE2\x82z\xFF"), "a\uFFFDz\uFFFD");
}

TEST(Unicode, WalksBackwards) {
    const std::string text = "a\xC3\xA9\xE6\x97\xA5\xF0\x9F\x99\x82\x99\xC3z";  // two strays
    std::vector<std::size_t> starts;
    for (std::size_t pos = text.size(); pos > 0;) {
        pos = char_before(text, pos);
        starts.push_back(pos);
    }
    EXPECT_EQ(starts, (std::vector<std::size_t>{12, 11, 10, 6, 3, 1, 0}));
}

}  // namespace
}  // namespace mr::text
