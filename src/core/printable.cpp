#include "core/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/utf8.h"

namespace mr {

bool is_unprintable(char32_t code) {
    struct Range {
        char32_t first, last;
    };
    static constexpr Range kRanges[] = {
        {0x00, 0x1F},        // C0
        {0x7F, 0x9F},        // DEL, C1
        {0xAD, 0xAD},        // soft hyphen
        {0x61C, 0x61C},      // Arabic letter mark
        {0x180E, 0x180E},    // Mongolian vowel separator
        {0x200B, 0x200B},    // zero width space; joiners (200C, 200D) are part of words
        {0x200E, 0x200F},    // left-to-right, right-to-left mark
        {0x2028, 0x202E},    // separators; embeddings and overrides
        {0x2060, 0x206F},    // invisible operators, isolates, deprecated controls
        {0xFEFF, 0xFEFF},    // byte order mark
        {0xFFF9, 0xFFFB},    // interlinear annotation
        {0xE0000, 0xE007F},  // tags
    };
    return std::any_of(std::begin(kRanges), std::end(kRanges),
                       [code](Range r) { return code >= r.first && code <= r.last; });
}

std::string printable(std::string_view text, std::size_t most_bytes) {
    std::string out;
    std::size_t i = 0;
    while (i < text.size()) {
        const Utf8Char c = utf8_at(text, i);
        if (c.size > most_bytes - std::min(most_bytes, i)) break;
        const std::string_view bytes = text.substr(i, c.size);
        if (!c.valid || (c.code < 0x80 && is_unprintable(c.code))) {
            for (const char b : bytes) {
                out += fmt::format("\\x{:02x}", static_cast<unsigned char>(b));
            }
        } else if (is_unprintable(c.code)) {
            out += c.code > 0xFFFF ? fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c.code))
                                   : fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.code));
        } else {
            out += bytes;
        }
        i += c.size;
    }
    if (i < text.size()) out += "...";
    return out;
}

std::string listed(std::span<const std::string> names, std::size_t most) {
    std::string out;
    for (const std::string& name : names.first(std::min(most, names.size()))) {
        out += (out.empty() ? "" : ", ") + printable(name);
    }
    return names.size() > most ? fmt::format("{} and {} more", out, names.size() - most) : out;
}

}  // namespace mr
