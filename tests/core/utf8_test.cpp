// Where text stops being UTF-8.
#include "core/utf8.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace mr {
namespace {

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

TEST(Utf8Fault, IsFoundAtAnyPlace) {
    EXPECT_FALSE(utf8_fault(""));
    for (std::size_t size = 1; size < 40; ++size) {
        const std::string text(size, 'a');
        EXPECT_FALSE(utf8_fault(text));
        for (std::size_t at = 0; at < size; ++at) {
            std::string wrong = text;
            wrong[at] = '\xe9';  // Latin-1's e with an accent
            EXPECT_EQ(utf8_fault(wrong), at);
        }
    }
}

TEST(Utf8Fault, AgreesWithTheStandard) {
    std::mt19937 random(2);
    int good = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string text;
        for (std::uint32_t n = random() % 8; n > 0; --n) {
            const char* const parts[] = {"a",        "aaaaaaaaa",        "\xc3\xa9", "\xe2\x82\xac",
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
        const auto fault = utf8_fault(text);
        EXPECT_EQ(!fault, well_formed(text)) << testing::PrintToString(text);
        EXPECT_TRUE(well_formed(text.substr(0, fault.value_or(0))));
        good += !fault;
    }
    EXPECT_GT(good, 4000);
    EXPECT_LT(good, 18000);
}

}  // namespace
}  // namespace mr
