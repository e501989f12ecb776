// UTF-8, the character classes of pre-tokenizers, and NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mr::text {

enum class CharClass : std::uint8_t { other, letter, number, space };

// One step through a text. A byte that starts no valid sequence is a character of its own, of class
// `other`, with code kBadByte + byte, so that any bytes can be iterated over.
struct Char {
    char32_t code;
    std::uint32_t size;  // bytes
};
inline constexpr char32_t kBadByte = 0x110000;

Char char_at_slow(std::string_view text, std::size_t pos);
inline Char char_at(std::string_view text, std::size_t pos) {
    const auto c = static_cast<unsigned char>(text[pos]);
    if (c < 0x80) return {c, 1};
    return char_at_slow(text, pos);
}

// Where the character that ends at `pos` > 0 begins.
std::size_t char_before(std::string_view text, std::size_t pos);

CharClass class_of_slow(char32_t code);
extern const CharClass kAsciiClass[128];
inline CharClass class_of(char32_t code) {
    return code < 128 ? kAsciiClass[code] : class_of_slow(code);
}

// A word character, as \w in regular expressions: letters, marks, decimal digits, connectors.
bool is_word(char32_t code);

void append_utf8(std::string& out, char32_t code);
bool is_ascii(std::string_view text);

// Unicode normalization form C. Bytes that are not UTF-8 stay as they are.
std::string nfc(std::string_view text);

// How many bytes at the end of `text` may be the start of a character that is not complete yet.
std::size_t incomplete_tail(std::string_view text);

// `text` with every maximal broken sequence replaced by U+FFFD.
std::string replace_invalid(std::string_view text);

}  // namespace mr::text
