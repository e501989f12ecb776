#include "text/documents.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/utf8.h"

namespace mr::text {

bool Documents::next(std::string_view& document) {
    while (!rest_.empty()) {
        const std::size_t end =
            separator_.empty() ? std::string_view::npos : rest_.find(separator_);
        document = rest_.substr(0, end);
        rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + separator_.size());
        if (!separator_.empty()) {
            document.remove_prefix(
                std::min(document.find_first_not_of(" \t\r\n"), document.size()));
            if (document.ends_with('\n')) document.remove_suffix(1);
            if (document.ends_with('\r')) document.remove_suffix(1);
        }
        if (!document.empty()) return true;
    }
    return false;
}

std::string_view without_mark(std::string_view text) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

std::optional<std::size_t> first_fault(std::string_view text) {
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

}  // namespace mr::text
