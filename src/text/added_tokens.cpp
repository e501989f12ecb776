#include "text/added_tokens.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "text/unicode.h"

namespace mr::text {
namespace {

constexpr std::size_t kPart = 64 << 10;  // bytes of text searched at a time, at least

bool is_word_at(std::string_view text, std::size_t pos) { return is_word(char_at(text, pos).code); }

bool is_space(std::string_view text, std::size_t pos) {
    return class_of(char_at(text, pos).code) == CharClass::space;
}

}  // namespace

std::int32_t BackwardAutomaton::child(std::int32_t node, unsigned char byte) const {
    if (node == kStart) return root_[byte];
    for (const auto& [key, to] : nodes_[static_cast<std::size_t>(node)].children) {
        if (key == byte) return to;
    }
    return -1;
}

void BackwardAutomaton::insert(std::string_view text, std::int32_t token) {
    std::int32_t node = kStart;
    for (auto c = text.rbegin(); c != text.rend(); ++c) {
        const auto byte = static_cast<unsigned char>(*c);
        std::int32_t to = child(node, byte);
        if (to < 0) {
            to = static_cast<std::int32_t>(nodes_.size());
            if (node == kStart) {
                root_[byte] = to;
            } else {
                nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, to);
            }
            nodes_.emplace_back();
        }
        node = to;
    }
    nodes_[static_cast<std::size_t>(node)].longest = token;
}

// Level by level: a node's `shorter` is always on a level above it.
void BackwardAutomaton::link() {
    std::vector<std::int32_t> level, next;
    for (const std::int32_t node : root_) {
        if (node >= 0) level.push_back(node);
    }
    while (!level.empty()) {
        next.clear();
        for (const std::int32_t at : level) {
            const Node& node = nodes_[static_cast<std::size_t>(at)];
            for (const auto& [byte, to] : node.children) {
                Node& below = nodes_[static_cast<std::size_t>(to)];
                below.shorter = step(node.shorter, byte);
                if (below.longest < 0) below.longest = longest(below.shorter);
                next.push_back(to);
            }
        }
        std::swap(level, next);
    }
}

std::int32_t BackwardAutomaton::step_inside(std::int32_t state, unsigned char byte) const {
    for (; state != kStart; state = nodes_[static_cast<std::size_t>(state)].shorter) {
        if (const std::int32_t to = child(state, byte); to >= 0) return to;
    }
    return root_[byte];
}

void AddedTokens::insert(const AddedToken& token) {
    if (!token.text.empty()) tokens_.push_back(token);
}

void AddedTokens::finish() {
    std::unordered_map<std::string_view, std::size_t> last;
    for (std::size_t i = 0; i < tokens_.size(); ++i) last[tokens_[i].text] = i;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const AddedToken& token = tokens_[i];
        if (last[token.text] != i) continue;
        (token.special ? specials_ : plain_).insert(token.text, static_cast<std::int32_t>(i));
        longest_ = std::max(longest_, token.text.size());
    }
    plain_.link();
    specials_.link();
}

// Finds the tokens that begin in the next part, reading from its end. Bytes after the part are
// read, too, because such tokens may end there.
void AddedTokens::Search::look(std::size_t from) {
    starts_.clear();
    const std::size_t begin = std::max(from, looked_);
    const std::size_t size = std::max(kPart, tokens_.longest_);
    looked_ = text_.size() - begin <= size ? text_.size() : begin + size;
    const std::size_t end = std::min(text_.size(), looked_ + tokens_.longest_);
    const bool special = special_ && !tokens_.specials_.empty();
    // The last literal range that begins before the end of the bytes read.
    std::size_t ranges = static_cast<std::size_t>(
        std::lower_bound(literal_.begin(), literal_.end(), end,
                         [](LiteralRange r, std::size_t e) { return r.begin < e; }) -
        literal_.begin());
    std::int32_t plain = BackwardAutomaton::kStart, specials = BackwardAutomaton::kStart;
    for (std::size_t pos = end; pos-- > begin;) {
        const auto byte = static_cast<unsigned char>(text_[pos]);
        plain = tokens_.plain_.step(plain, byte);
        std::int32_t found = tokens_.plain_.longest(plain);
        if (special) {
            while (ranges > 0 && literal_[ranges - 1].begin > pos) --ranges;
            const bool literal = ranges > 0 && pos < literal_[ranges - 1].end;
            specials = literal ? BackwardAutomaton::kStart : tokens_.specials_.step(specials, byte);
            const std::int32_t other = tokens_.specials_.longest(specials);
            const auto length = [this](std::int32_t i) {
                return tokens_.tokens_[static_cast<std::size_t>(i)].text.size();
            };
            if (other >= 0 && (found < 0 || length(other) > length(found))) found = other;
        }
        if (found >= 0 && pos < looked_) starts_.push_back({pos, found});
    }
}

AddedTokens::Match AddedTokens::Search::next() {
    const std::string_view text = text_;
    const auto strips = [&](std::size_t pos) {
        return is_space(text, pos) && (strips_space_ || text[pos] != ' ');
    };
    while (!tokens_.empty()) {
        while (!starts_.empty() && starts_.back().pos < at_) starts_.pop_back();
        if (starts_.empty()) {
            if (std::max(at_, looked_) >= text.size()) break;
            look(at_);
            continue;
        }
        const auto [pos, index] = starts_.back();
        starts_.pop_back();
        const AddedToken& found = tokens_.tokens_[static_cast<std::size_t>(index)];
        std::size_t begin = pos, end = pos + found.text.size();
        at_ = end;  // one that is not a whole word uses up its text, too
        if (found.single_word && ((begin > 0 && is_word_at(text, char_before(text, begin))) ||
                                  (end < text.size() && is_word_at(text, end)))) {
            continue;
        }
        if (found.lstrip) {
            while (begin > taken_) {
                const std::size_t before = char_before(text, begin);
                if (before < taken_ || !strips(before)) break;
                begin = before;
            }
            begin = std::max(begin, taken_);
        }
        if (found.rstrip) {
            while (end < text.size() && strips(end)) end += char_at(text, end).size;
        }
        if (begin >= end) continue;  // white space that the last match has taken
        taken_ = end;
        return {begin, end, found.id};
    }
    return {text.size(), text.size(), -1};
}

}  // namespace mr::text
