// The syntax tree of a pattern.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/network.h"
#include "text/grammar/regex.h"

namespace mr::text::grammar {

// In order, without overlap.
using CharRanges = std::vector<std::pair<char32_t, char32_t>>;

struct RegexNode {
    enum class Kind : std::uint8_t {
        set,     // one character of `ranges`
        all,     // the parts in sequence
        any,     // one of the parts
        repeat,  // the part, `least` to `most` times
        begin,   // ^
        end,     // $
    };
    Kind kind = Kind::all;
    std::vector<std::uint32_t> parts{};  // indices into RegexSyntax::nodes
    CharRanges ranges{};
    std::uint32_t least = 0, most = 0;
};

struct RegexSyntax {
    std::vector<RegexNode> nodes;
    std::uint32_t root = 0;
};

RegexSyntax parse_pattern(std::string_view pattern);

}  // namespace mr::text::grammar
