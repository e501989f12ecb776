#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace mr {

// Unicode's table of well-formed UTF-8: the range of the second byte depends on the first.
Utf8Char utf8_at(std::string_view text, std::size_t pos) {
    const auto lead = static_cast<unsigned char>(text[pos]);
    if (lead < 0x80) return {lead, 1, true};
    const std::size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                               : lead >= 0xE0 && lead < 0xF0 ? 3
                               : lead >= 0xF0 && lead < 0xF5 ? 4
                                                             : 0;
    char32_t code = length == 2 ? lead & 0x1Fu : length == 3 ? lead & 0x0Fu : lead & 0x07u;
    unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    std::size_t size = 1;
    for (; size < length && pos + size < text.size(); ++size) {
        const auto next = static_cast<unsigned char>(text[pos + size]);
        if (next < low || next > high) break;
        code = code << 6 | (next & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    if (size != length) return {lead, size, false};
    return {code, size, true};
}

std::optional<std::size_t> utf8_fault(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        std::uint64_t eight = 0;  // ASCII goes by eights
        if (text.size() - at >= sizeof eight) {
            std::memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const Utf8Char c = utf8_at(text, at);
        if (!c.valid) return at;
        at += c.size;
    }
    return std::nullopt;
}

}  // namespace mr
