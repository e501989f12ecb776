// Literals of a template, read as Python does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mr::text::jinja {

// A string literal without its quotes, with \n, \xhh, \uhhhh and the like resolved.
std::string unescape(std::string_view literal);

struct NumberLiteral {
    std::size_t size = 0;  // bytes; 0: no number
    bool is_real = false;
    bool overflow = false;
    std::int64_t integer = 0;
    double real = 0;
};
// Reads a number at the beginning of `text`: 12, 1_000, 0x1f, 1.5, 1e3.
NumberLiteral read_number(std::string_view text);

}  // namespace mr::text::jinja
