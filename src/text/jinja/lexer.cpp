#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "text/jinja/literals.h"

namespace mr::text::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) : source_(one_newline(source)) {}

    std::vector<Token> run() {
        while (pos_ < source_.size()) {
            const std::size_t tag = next_tag(pos_);
            if (tag == std::string::npos) {
                data(source_.size(), '\0', false);
                break;
            }
            const char kind = source_[tag + 1];
            const char sign = sign_at(tag + 2);
            data(tag, sign, kind != '{');
            skip(sign ? 3 : 2);
            if (kind == '#') {
                comment();
            } else if (kind == '{') {
                inside(TokenKind::print_begin, TokenKind::print_end, "}}");
            } else if (!raw()) {
                inside(TokenKind::block_begin, TokenKind::block_end, "%}");
            }
        }
        push(TokenKind::end);
        return std::move(tokens_);
    }

  private:
    // Converts \r\n and \r to \n, and drops one newline at the very end.
    static std::string one_newline(std::string_view source) {
        std::string out;
        out.reserve(source.size());
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (source[i] == '\r') {
                out += '\n';
                if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
            } else {
                out += source[i];
            }
        }
        if (out.ends_with('\n')) out.pop_back();
        return out;
    }

    std::size_t next_tag(std::size_t from) const {
        for (std::size_t at = source_.find('{', from); at != std::string::npos;
             at = source_.find('{', at + 1)) {
            if (at + 1 >= source_.size()) break;
            const char kind = source_[at + 1];
            if (kind == '{' || kind == '%' || kind == '#') return at;
        }
        return std::string::npos;
    }

    char sign_at(std::size_t at) const {
        return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at]
                                                                                 : '\0';
    }

    [[noreturn]] void fail(std::string problem) const {
        throw SyntaxFailure{line_, std::move(problem)};
    }

    Token& push(TokenKind kind, std::string text = {}) {
        tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
        return tokens_.back();
    }

    void skip(std::size_t count) {
        const std::size_t end = std::min(pos_ + count, source_.size());
        line_ +=
            static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                        source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
        if (end > pos_) starts_line_ = source_[end - 1] == '\n';
        pos_ = end;
    }

    void skip_blanks() {
        std::size_t count = 0;
        while (pos_ + count < source_.size() && is_blank(source_[pos_ + count])) ++count;
        skip(count);
    }

    bool at(std::string_view what) const {
        return std::string_view(source_).substr(pos_).starts_with(what);
    }

    // The text up to `end`, where a tag that begins with `sign` follows or the template ends.
    void data(std::size_t end, char sign, bool block) {
        std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
        if (sign == '-') {
            while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
        } else if (sign != '+' && block) {
            const std::size_t newline = text.rfind('\n');
            const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
            const std::string_view last = text.substr(line);
            if ((line > 0 || starts_line_) && std::all_of(last.begin(), last.end(), is_blank)) {
                text = text.substr(0, line);
            }
        }
        if (!text.empty()) push(TokenKind::data, std::string(text));
        skip(end - pos_);
    }

    // Moves past a tag's end: "-%}" strips all white space after it, "%}" one newline, "+%}" none.
    void past_end(char sign, std::size_t size, bool newline) {
        skip(size);
        if (sign == '-') {
            skip_blanks();
        } else if (newline && sign != '+' && pos_ < source_.size() && source_[pos_] == '\n') {
            skip(1);
        }
    }

    void comment() {
        const std::size_t end = source_.find("#}", pos_);
        if (end == std::string::npos) fail("a comment has no end");
        const char sign = end > pos_ ? sign_at(end - 1) : '\0';
        skip(end - pos_);
        past_end(sign, 2, true);
    }

    // After "{%": whether this is {% raw %}, which is then read up to its end.
    bool raw() {
        const auto tag_after = [&](std::size_t from, std::string_view word, bool plus,
                                   char& sign) -> std::optional<std::size_t> {
            std::size_t i = from;
            while (i < source_.size() && is_blank(source_[i])) ++i;
            if (source_.compare(i, word.size(), word) != 0) return std::nullopt;
            i += word.size();
            while (i < source_.size() && is_blank(source_[i])) ++i;
            sign = sign_at(i);
            if (sign == '+' && !plus) return std::nullopt;
            if (sign) ++i;
            if (source_.compare(i, 2, "%}") != 0) return std::nullopt;
            return i;
        };
        char sign = '\0';
        const auto open = tag_after(pos_, "raw", false, sign);
        if (!open) return false;
        skip(*open - pos_);
        past_end(sign, 2, false);
        for (std::size_t tag = source_.find("{%", pos_); tag != std::string::npos;
             tag = source_.find("{%", tag + 2)) {
            const char before = sign_at(tag + 2);
            const auto close = tag_after(tag + (before ? 3 : 2), "endraw", true, sign);
            if (!close) continue;
            data(tag, before, true);
            skip(*close - pos_);
            past_end(sign, 2, true);
            return true;
        }
        fail("raw has no endraw");
    }

    void inside(TokenKind begin, TokenKind end, std::string_view mark) {
        const bool block = end == TokenKind::block_end;
        push(begin);
        std::string open;  // brackets
        for (;;) {
            skip_blanks();
            if (pos_ >= source_.size()) fail("a tag has no end");
            if (open.empty()) {
                const char sign = sign_at(pos_);
                const bool signed_end =
                    sign && (block || sign == '-') && source_.compare(pos_ + 1, 2, mark) == 0;
                if (signed_end || at(mark)) {
                    push(end);
                    past_end(signed_end ? sign : '\0', signed_end ? 3 : 2, block);
                    return;
                }
            }
            token(open);
        }
    }

    void token(std::string& open) {
        const char c = source_[pos_];
        if (is_digit(c)) {
            number();
        } else if (starts_name(c)) {
            std::size_t end = pos_;
            while (end < source_.size() && (starts_name(source_[end]) || is_digit(source_[end]))) {
                ++end;
            }
            push(TokenKind::name, source_.substr(pos_, end - pos_));
            skip(end - pos_);
        } else if (c == '\'' || c == '"') {
            std::size_t end = pos_ + 1;
            while (end < source_.size() && source_[end] != c) end += source_[end] == '\\' ? 2 : 1;
            if (end >= source_.size()) fail("a string has no end");
            push(TokenKind::text,
                 unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1)));
            skip(end + 1 - pos_);
        } else {
            symbol(open);
        }
    }

    void number() {
        const NumberLiteral read = read_number(std::string_view(source_).substr(pos_));
        if (read.size == 0) fail(fmt::format("'{}' does not begin a number", source_[pos_]));
        if (read.overflow) fail("an integer does not fit into 64 bits");
        Token& token = push(read.is_real ? TokenKind::real : TokenKind::integer);
        token.integer = read.integer;
        token.real = read.real;
        skip(read.size);
    }

    void symbol(std::string& open) {
        for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
            if (!at(two)) continue;
            push(TokenKind::op, std::string(two));
            return skip(2);
        }
        const char c = source_[pos_];
        constexpr std::string_view kOne = "+-*/%~[](){}<>=.:|,;";
        if (kOne.find(c) == std::string_view::npos) {
            fail(fmt::format("unexpected '{}'", c));
        }
        if (c == '(') open += ')';
        if (c == '[') open += ']';
        if (c == '{') open += '}';
        if (c == ')' || c == ']' || c == '}') {
            if (open.empty() || open.back() != c) fail(fmt::format("unexpected '{}'", c));
            open.pop_back();
        }
        push(TokenKind::op, std::string(1, c));
        skip(1);
    }

    const std::string source_;
    std::size_t pos_ = 0;
    int line_ = 1;
    bool starts_line_ = true;  // the next text begins a line
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace mr::text::jinja
