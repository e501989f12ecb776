#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace mr::text {
namespace {

bool is_word(std::string_view text, std::size_t pos) {
    const char32_t code = char_at(text, pos).code;
    const CharClass kind = class_of(code);
    return kind == CharClass::letter || kind == CharClass::number || code == '_';
}

// Whether bytes [begin, end) have one in common with a range.
bool touches(std::span<const LiteralRange> ranges, std::size_t begin, std::size_t end) {
    const auto it = std::lower_bound(ranges.begin(), ranges.end(), begin,
                                     [](LiteralRange r, std::size_t b) { return r.end <= b; });
    return it != ranges.end() && it->begin < end && it->begin < it->end;
}

bool is_space(std::string_view text, std::size_t pos) {
    return class_of(char_at(text, pos).code) == CharClass::space;
}

}  // namespace

std::int32_t AddedTokens::child(std::int32_t node, unsigned char byte) const {
    for (const auto& [key, to] : nodes_[static_cast<std::size_t>(node)].children) {
        if (key == byte) return to;
    }
    return -1;
}

void AddedTokens::insert(const AddedToken& token) {
    if (token.text.empty()) return;
    std::int32_t node = -1;
    for (char c : token.text) {
        const auto byte = static_cast<unsigned char>(c);
        std::int32_t to = node < 0 ? root_[byte] : child(node, byte);
        if (to < 0) {
            to = static_cast<std::int32_t>(nodes_.size());
            if (node < 0) {
                root_[byte] = to;
            } else {
                nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, to);
            }
            nodes_.emplace_back();
        }
        node = to;
    }
    nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(token);
}

AddedTokens::Match AddedTokens::next(std::string_view text, std::size_t from, bool special,
                                     std::span<const LiteralRange> literal) const {
    if (empty()) return {text.size(), text.size(), -1};
    for (std::size_t pos = from; pos < text.size(); ++pos) {
        std::int32_t node = root_[static_cast<unsigned char>(text[pos])];
        if (node < 0) continue;
        const AddedToken* found = nullptr;
        for (std::size_t i = pos + 1;; ++i) {
            const std::int32_t index = nodes_[static_cast<std::size_t>(node)].token;
            if (index >= 0) {
                const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
                const bool allowed = special && !touches(literal, pos, i);
                if (allowed || !token.special) found = &token;
            }
            if (i >= text.size()) break;
            node = child(node, static_cast<unsigned char>(text[i]));
            if (node < 0) break;
        }
        if (!found) continue;
        std::size_t begin = pos, end = pos + found->text.size();
        if (found->single_word && ((begin > from && is_word(text, char_before(text, begin))) ||
                                   (end < text.size() && is_word(text, end)))) {
            continue;
        }
        if (found->lstrip) {
            while (begin > from) {
                const std::size_t before = char_before(text, begin);
                if (before < from || !is_space(text, before)) break;
                begin = before;
            }
        }
        if (found->rstrip) {
            while (end < text.size() && is_space(text, end)) end += char_at(text, end).size;
        }
        return {begin, end, found->id};
    }
    return {text.size(), text.size(), -1};
}

}  // namespace mr::text
