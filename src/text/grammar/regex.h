// Patterns of schemas as automata: a regular subset of ECMA-262's syntax. There is no backtracking;
// patterns that would become too large are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/grammar/chars.h"

namespace mr::text::grammar {

// The budget that all patterns of one schema share.
struct RegexBudget {
    std::uint64_t steps = 5'000'000;
};
inline constexpr std::size_t kMostPatternBytes = 4096;
inline constexpr std::size_t kMostPatternStates = 20'000;  // before the subset construction
inline constexpr std::size_t kMostPatternNodes = 4096;     // after it

// The fault of a pattern, worded to follow its path.
struct BadPattern {
    std::string problem;
};

// Accepts strings that contain a match (^ and $ anchor it), of `least` to `most` characters.
// `whole`: strings that are a match. Throws BadPattern.
CharAutomaton automaton_of_pattern(std::string_view pattern, std::uint32_t least,
                                   std::uint32_t most, RegexBudget& budget, bool whole = false);

}  // namespace mr::text::grammar
