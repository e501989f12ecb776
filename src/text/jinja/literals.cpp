#include "text/jinja/literals.h"

#include <charconv>

#include "core/read_double.h"
#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// Reads digits of `base` with single underscores between them; `digits` gets them without.
std::size_t read_digits(std::string_view text, int base, std::string& digits) {
    std::size_t i = 0;
    while (i < text.size()) {
        const std::size_t at = text[i] == '_' && i > 0 ? i + 1 : i;
        if (at >= text.size()) break;
        const int digit = hex_digit(text[at]);
        if (digit < 0 || digit >= base) break;
        digits += text[at];
        i = at + 1;
    }
    return i;
}

}  // namespace

std::string unescape(std::string_view literal) {
    std::string out;
    for (std::size_t i = 0; i < literal.size(); ++i) {
        if (literal[i] != '\\' || i + 1 >= literal.size()) {
            out += literal[i];
            continue;
        }
        const char c = literal[++i];
        constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
        const std::size_t simple = kFrom.find(c);
        const std::size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (simple != std::string_view::npos) {
            out += kTo[simple];
        } else if (c == '\n') {
            // A line continuation.
        } else if (c >= '0' && c <= '7') {
            char32_t code = 0;
            std::size_t n = 0;
            for (;
                 n < 3 && i + n < literal.size() && literal[i + n] >= '0' && literal[i + n] <= '7';
                 ++n) {
                code = code * 8 + static_cast<char32_t>(literal[i + n] - '0');
            }
            append_utf8(out, code);
            i += n - 1;
        } else if (wanted > 0) {
            char32_t code = 0;
            std::size_t n = 0;
            for (; n < wanted && i + 1 + n < literal.size(); ++n) {
                const int digit = hex_digit(literal[i + 1 + n]);
                if (digit < 0) break;
                code = code * 16 + static_cast<char32_t>(digit);
            }
            const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
            if (n == wanted && code < 0x110000 && !surrogate) {
                append_utf8(out, code);
                i += wanted;
            } else {
                out += '\\';
                out += c;
            }
        } else {
            out += '\\';
            out += c;
        }
    }
    return out;
}

NumberLiteral read_number(std::string_view text) {
    NumberLiteral out;
    std::string digits;
    int base = 10;
    if (text.size() > 2 && text[0] == '0') {
        const char kind = static_cast<char>(text[1] | 0x20);
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    }
    if (base != 10) {
        out.size = 2 + read_digits(text.substr(2), base, digits);
        if (digits.empty()) return {};
    } else {
        out.size = read_digits(text, 10, digits);
        if (digits.empty()) return {};
        const auto digit_at = [&](std::size_t i) {
            return i < text.size() && text[i] >= '0' && text[i] <= '9';
        };
        std::size_t end = out.size;
        if (end < text.size() && text[end] == '.' && digit_at(end + 1)) {
            digits += '.';
            end += 1 + read_digits(text.substr(end + 1), 10, digits);
            out.is_real = true;
        }
        if (end < text.size() && (text[end] | 0x20) == 'e') {
            const bool sign =
                end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-');
            if (digit_at(end + (sign ? 2 : 1))) {
                digits += 'e';
                if (sign) digits += text[end + 1];
                end += sign ? 2 : 1;
                end += read_digits(text.substr(end), 10, digits);
                out.is_real = true;
            }
        }
        out.size = end;
    }
    if (out.is_real) {
        out.real = read_double(digits).value();
        return out;
    }
    const auto done =
        std::from_chars(digits.data(), digits.data() + digits.size(), out.integer, base);
    out.overflow = done.ec != std::errc{};
    return out;
}

}  // namespace mr::text::jinja
