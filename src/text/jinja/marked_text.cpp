#include "text/jinja/marked_text.h"

#include <algorithm>

namespace mr::text::jinja {
namespace {

// The first range that ends after `byte`.
auto first_after(std::span<const LiteralRange> ranges, std::size_t byte) {
    return std::lower_bound(ranges.begin(), ranges.end(), byte,
                            [](const LiteralRange& r, std::size_t b) { return r.end <= b; });
}

}  // namespace

MarkedText::MarkedText(std::string bytes, bool user) : bytes_(std::move(bytes)) {
    if (user) mark(0, bytes_.size());
}

bool MarkedText::any_user(std::size_t begin, std::size_t end) const {
    const auto it = first_after(user_, begin);
    return it != user().end() && it->begin < end;
}

void MarkedText::mark(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    if (!user_.empty() && user_.back().end == begin) {
        user_.back().end = end;
    } else {
        user_.push_back({begin, end});
    }
}

void MarkedText::append(std::string_view piece, bool user) {
    const std::size_t begin = bytes_.size();
    bytes_ += piece;
    if (user) mark(begin, bytes_.size());
}

void MarkedText::append(const MarkedText& piece, std::size_t begin, std::size_t end) {
    const std::size_t base = bytes_.size();
    bytes_.append(piece.bytes_, begin, end - begin);
    for (auto it = first_after(piece.user_, begin); it != piece.user().end() && it->begin < end;
         ++it) {
        mark(base + std::max(it->begin, begin) - begin, base + std::min(it->end, end) - begin);
    }
}

MarkedText MarkedText::slice(std::size_t begin, std::size_t end) const {
    MarkedText out;
    out.append(*this, begin, end);
    return out;
}

}  // namespace mr::text::jinja
