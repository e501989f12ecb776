// Splits a template into tokens, with transformers' settings: the newline after a tag and the
// blanks before a tag at the start of a line are dropped (trim_blocks, lstrip_blocks).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::text::jinja {

enum class TokenKind : std::uint8_t {
    data,  // text between tags
    block_begin,
    block_end,
    print_begin,
    print_end,
    name,
    text,     // a string literal, with escapes resolved
    integer,  // its value is in `integer`
    real,     // its value is in `real`
    op,
    end,  // end of the template
};

struct Token {
    TokenKind kind = TokenKind::end;
    int line = 1;
    std::string text{};
    std::int64_t integer = 0;
    double real = 0;
};

// A syntax error of a template, and where it is.
struct SyntaxFailure {
    int line;
    std::string problem;
};

// Throws SyntaxFailure. The last token is `end`.
std::vector<Token> tokenize(std::string_view source);

}  // namespace mr::text::jinja
