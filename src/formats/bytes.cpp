#include "formats/bytes.h"

#include <fmt/format.h>

namespace mr::formats {

std::string printable(std::string_view text, std::size_t max_bytes) {
    std::string out;
    for (const char c : text.substr(0, max_bytes)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte > 0x7e) {
            out += fmt::format("\\x{:02x}", byte);
        } else {
            out += c;
        }
    }
    if (text.size() > max_bytes) out += "...";
    return out;
}

bool is_utf8(std::string_view text) {
    std::size_t i = 0;
    while (i < text.size()) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const int extra = lead < 0x80                   ? 0
                          : lead >= 0xc2 && lead < 0xe0 ? 1
                          : lead >= 0xe0 && lead < 0xf0 ? 2
                          : lead >= 0xf0 && lead < 0xf5 ? 3
                                                        : -1;
        if (extra < 0 || static_cast<std::size_t>(extra) >= text.size() - i) return false;
        std::uint32_t code = extra == 0 ? lead : lead & (0x3fu >> extra);
        for (int k = 1; k <= extra; ++k) {
            const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
            if ((next & 0xc0u) != 0x80u) return false;
            code = (code << 6) | (next & 0x3fu);
        }
        const bool overlong = (extra == 2 && code < 0x800) || (extra == 3 && code < 0x10000);
        if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
        i += 1 + static_cast<std::size_t>(extra);
    }
    return true;
}

Error ByteReader::error(std::string_view field, std::string value, std::string problem,
                        std::uint64_t at, std::string remedy) const {
    return Error::input({.file = file_,
                         .field = std::string(field),
                         .value = std::move(value),
                         .problem = fmt::format("{} (at offset {})", problem, at),
                         .remedy = std::move(remedy)});
}

void ByteReader::fail_short(std::uint64_t count, std::string_view field) const {
    throw error(
        field, fmt::format("{} bytes", count),
        fmt::format("runs past the end of the file: {} bytes are left of {}", remaining(), size()),
        offset_, "the file is truncated or damaged: download it again");
}

}  // namespace mr::formats
