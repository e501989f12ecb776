#include "text/documents.h"

#include <algorithm>

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

}  // namespace mr::text
