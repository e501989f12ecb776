// A walk over text that may hold any bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace mr {

struct Utf8Char {
    char32_t code;     // of what is no UTF-8: the first byte
    std::size_t size;  // bytes, at least 1; of what is no UTF-8 the whole broken sequence
    bool valid;
};

// The character that begins at `pos` < text.size().
Utf8Char utf8_at(std::string_view text, std::size_t pos);

}  // namespace mr
