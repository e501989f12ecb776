// Decodes UTF-8 from text that may hold any bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace mr {

struct Utf8Char {
    char32_t code;     // if invalid: the first byte
    std::size_t size;  // bytes, at least 1; if invalid, the whole broken sequence
    bool valid;
};

// The character that begins at `pos` < text.size().
Utf8Char utf8_at(std::string_view text, std::size_t pos);

// Where the first byte is that is not part of valid UTF-8; none: the whole text is valid.
std::optional<std::size_t> utf8_fault(std::string_view text);

}  // namespace mr
