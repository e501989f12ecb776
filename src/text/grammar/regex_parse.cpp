#include "text/grammar/regex_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/printable.h"
#include "core/utf8.h"

namespace mr::text::grammar {
namespace {

constexpr int kMostGroups = 60;  // nested
constexpr std::uint32_t kMostCount = 10'000;
constexpr char32_t kLast = 0x10FFFF;

const CharRanges kDigits = {{'0', '9'}};
const CharRanges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharRanges kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                           {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                           {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharRanges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

void tidy(CharRanges& ranges) {
    std::sort(ranges.begin(), ranges.end());
    CharRanges out;
    for (const auto& [low, high] : ranges) {
        if (!out.empty() && low <= out.back().second + 1) {
            out.back().second = std::max(out.back().second, high);
        } else {
            out.emplace_back(low, high);
        }
    }
    ranges = std::move(out);
}

CharRanges all_other(const CharRanges& ranges) {
    CharRanges out;
    char32_t from = 0;
    for (const auto& [low, high] : ranges) {
        if (from < low) out.emplace_back(from, low - 1);
        from = high + 1;
    }
    if (from <= kLast) out.emplace_back(from, kLast);
    return out;
}

class PatternParser {
  public:
    explicit PatternParser(std::string_view text) : text_(text) {}

    RegexSyntax parse() {
        if (text_.size() > kMostPatternBytes) {
            throw BadPattern{fmt::format("is longer than {} bytes", kMostPatternBytes)};
        }
        out_.root = alternatives();
        if (!done()) throw bad("')' closes no group");
        return std::move(out_);
    }

  private:
    using Kind = RegexNode::Kind;

    bool done() const { return at_ >= text_.size(); }
    bool is(char c) const { return !done() && text_[at_] == c; }
    bool take(std::string_view word) {
        if (!text_.substr(at_).starts_with(word)) return false;
        at_ += word.size();
        return true;
    }
    BadPattern bad(std::string_view problem) const {
        return {fmt::format("'{}' at byte {}: {}", printable(text_, 100), at_, problem)};
    }
    std::uint32_t add(RegexNode node) {
        out_.nodes.push_back(std::move(node));
        return static_cast<std::uint32_t>(out_.nodes.size() - 1);
    }
    std::uint32_t add_set(CharRanges ranges) {
        return add({.kind = Kind::set, .ranges = std::move(ranges)});
    }
    char32_t character() {
        const Utf8Char c = utf8_at(text_, at_);
        at_ += c.size;
        return c.code;
    }

    // Recursion is bounded by the nesting of groups, which is limited.
    std::uint32_t alternatives() {
        std::vector<std::uint32_t> parts = {sequence()};
        while (take("|")) parts.push_back(sequence());
        return parts.size() == 1 ? parts[0] : add({.kind = Kind::any, .parts = std::move(parts)});
    }

    std::uint32_t sequence() {
        std::vector<std::uint32_t> parts;
        while (!done() && !is('|') && !is(')')) parts.push_back(quantified());
        return add({.kind = Kind::all, .parts = std::move(parts)});
    }

    std::uint32_t quantified() {
        if (take("^")) return add({.kind = Kind::begin});
        if (take("$")) return add({.kind = Kind::end});
        if (is('*') || is('+') || is('?')) throw bad("a quantifier has nothing before it");
        const std::uint32_t part = atom();
        std::uint32_t least = 1, most = 1;
        if (take("*")) {
            least = 0, most = kUnbounded;
        } else if (take("+")) {
            most = kUnbounded;
        } else if (take("?")) {
            least = 0;
        } else if (is('{')) {
            counts(least, most);
        } else {
            return part;
        }
        take("?");  // lazy: matches the same strings
        if (is('*') || is('+') || is('?') || is('{')) throw bad("a quantifier follows another");
        return add({.kind = Kind::repeat, .parts = {part}, .least = least, .most = most});
    }

    void counts(std::uint32_t& least, std::uint32_t& most) {
        ++at_;
        const auto number = [&]() -> std::optional<std::uint32_t> {
            std::uint32_t value = 0;
            const std::size_t from = at_;
            for (; !done() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
                value = value * 10 + static_cast<std::uint32_t>(text_[at_] - '0');
                if (value > kMostCount) throw bad(fmt::format("a count is over {}", kMostCount));
            }
            return from == at_ ? std::nullopt : std::optional(value);
        };
        const auto first = number();
        if (!first) throw bad("'{' wants a count; write \\{ for the character");
        least = most = *first;
        if (take(",")) most = number().value_or(kUnbounded);
        if (!take("}")) throw bad("'{' is not closed");
        if (most < least) throw bad("counts are in the wrong order");
    }

    std::uint32_t atom() {
        if (take("(")) return group();
        if (take("[")) return add_set(char_class());
        if (take(".")) return add_set(all_other(kLineEnds));
        if (take("\\")) {
            if (const auto ranges = escaped_class()) return add_set(*ranges);
            const char32_t code = escaped();
            return add_set({{code, code}});
        }
        if (is(']') || is('}')) throw bad("a bracket closes nothing; write a \\ before it");
        const char32_t code = character();
        return add_set({{code, code}});
    }

    std::uint32_t group() {
        if (take("?")) {
            if (take("<")) {
                if (is('=') || is('!')) throw bad("looking around is not supported");
                while (!done() && !is('>')) ++at_;
                if (!take(">")) throw bad("the name of a group is not closed");
            } else if (!take(":")) {
                throw bad("of groups with '?', only (?: ) and names are supported");
            }
        }
        if (++depth_ > kMostGroups) throw bad("groups nest too deep");
        const std::uint32_t inside = alternatives();
        --depth_;
        if (!take(")")) throw bad("a group is not closed");
        return inside;
    }

    std::optional<CharRanges> escaped_class() {
        if (take("d")) return kDigits;
        if (take("D")) return all_other(kDigits);
        if (take("w")) return kWord;
        if (take("W")) return all_other(kWord);
        if (take("s")) return kSpace;
        if (take("S")) return all_other(kSpace);
        return std::nullopt;
    }

    char32_t hex(std::size_t digits) {
        char32_t value = 0;
        for (std::size_t i = 0; i < digits; ++i, ++at_) {
            const char c = done() ? ' ' : text_[at_];
            const bool digit = c >= '0' && c <= '9';
            const char letter = static_cast<char>(c | 0x20);
            if (!digit && (letter < 'a' || letter > 'f')) throw bad("wants hexadecimal digits");
            value = value * 16 + static_cast<char32_t>(digit ? c - '0' : letter - 'a' + 10);
        }
        return value;
    }

    // After a backslash.
    char32_t escaped() {
        if (done()) throw bad("ends with a backslash");
        constexpr std::pair<char, char32_t> kNamed[] = {{'t', '\t'}, {'n', '\n'}, {'r', '\r'},
                                                        {'f', '\f'}, {'v', '\v'}, {'0', 0}};
        for (const auto& [letter, code] : kNamed) {
            if (is(letter)) {
                ++at_;
                return code;
            }
        }
        if (take("x")) return hex(2);
        if (take("u{")) {
            const std::size_t end = text_.find('}', at_);
            if (end == std::string_view::npos || end == at_ || end - at_ > 6) {
                throw bad("\\u{ wants up to six digits and '}'");
            }
            const char32_t code = hex(end - at_);
            ++at_;
            if (code > kLast) throw bad("is past U+10FFFF");
            return code;
        }
        if (take("u")) {
            const char32_t high = hex(4);
            if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
            const char32_t low = hex(4);
            if (low < 0xDC00 || low > 0xDFFF) throw bad("half of a surrogate pair");
            return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        }
        const char c = text_[at_];
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
            throw bad("this escape is not supported");
        }
        return character();
    }

    CharRanges char_class() {
        const bool negated = take("^");
        CharRanges out;
        while (!is(']')) {
            if (done()) throw bad("'[' is not closed");
            std::optional<CharRanges> several;
            const char32_t low = member(several);
            if (several) {
                out.insert(out.end(), several->begin(), several->end());
                if (is('-') && !text_.substr(at_).starts_with("-]")) {
                    throw bad("a range begins with a class");
                }
                continue;
            }
            char32_t high = low;
            if (is('-') && !text_.substr(at_).starts_with("-]")) {
                ++at_;
                if (done()) throw bad("'[' is not closed");
                high = member(several);
                if (several) throw bad("a range ends with a class");
                if (high < low) throw bad("a range is in the wrong order");
            }
            out.emplace_back(low, high);
        }
        ++at_;
        tidy(out);
        return negated ? all_other(out) : out;
    }

    char32_t member(std::optional<CharRanges>& several) {
        if (!take("\\")) return character();
        if (take("b")) return '\b';
        several = escaped_class();
        return several ? 0 : escaped();
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int depth_ = 0;
    RegexSyntax out_;
};

}  // namespace

RegexSyntax parse_pattern(std::string_view pattern) { return PatternParser(pattern).parse(); }

}  // namespace mr::text::grammar
