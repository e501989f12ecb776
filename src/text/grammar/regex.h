// Patterns of schemas: a subset of ECMA-262's, all of it regular, as an automaton. Nothing is tried
// and taken back; what would become too large is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/grammar/chars.h"

namespace mr::text::grammar {

// What all patterns of one schema may cost together.
struct RegexBudget {
    std::uint64_t steps = 5'000'000;
};
inline constexpr std::size_t kMostPatternBytes = 4096;
inline constexpr std::size_t kMostPatternStates = 20'000;  // before they are made deterministic
inline constexpr std::size_t kMostPatternNodes = 4096;     // and after

// What is wrong with a pattern, in words that follow its path.
struct BadPattern {
    std::string problem;
};

// Strings that the pattern is found in (^ and $ bind it to the ends), of `least` to `most`
// characters. Throws BadPattern.
CharAutomaton automaton_of_pattern(std::string_view pattern, std::uint32_t least,
                                   std::uint32_t most, RegexBudget& budget);

}  // namespace mr::text::grammar
