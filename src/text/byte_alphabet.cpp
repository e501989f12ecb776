#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace mr::text {
namespace {

constexpr bool prints(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
    std::array<char32_t, 256> to_char{};
    std::array<std::int16_t, 0x144> to_byte{};  // the last character is U+0143
};

constexpr Alphabet make_alphabet() {
    Alphabet a;
    for (auto& b : a.to_byte) b = -1;
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char32_t c = prints(byte) ? byte : next++;
        a.to_char[byte] = c;
        a.to_byte[c] = static_cast<std::int16_t>(byte);
    }
    return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_to_char(unsigned char byte) { return kAlphabet.to_char[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string out;
    for (std::size_t i = 0; i < token.size();) {
        const Char c = char_at(token, i);
        if (c.code >= kAlphabet.to_byte.size() || kAlphabet.to_byte[c.code] < 0)
            return std::nullopt;
        out += static_cast<char>(kAlphabet.to_byte[c.code]);
        i += c.size;
    }
    return out;
}

int byte_of_name(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (char c : token.substr(3, 2)) {
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

}  // namespace mr::text
