// Exact automata for numbers between two bounds, digit by digit.
#pragma once

#include <optional>

#include "core/decimal.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

// Digits that a number may have before the point, and after it: 18 fit into every 64-bit integer.
// Where a bound has more, numbers have as many as that bound, but only as many as 64 bits may have,
// or one more than the least number.
inline constexpr std::size_t kMostDigits = 18;
inline constexpr std::size_t kMostDigitsToBound = 20;
// Of a bound, before the point, and after it: every double has fewer before it.
inline constexpr std::size_t kMostBoundDigits = 400;

struct NumberBound {
    Decimal value;
    bool included = true;
};

struct NumberBounds {
    std::optional<NumberBound> low{}, high{};
    bool fractions = true;  // allowed; without bounds, also exponents of up to two digits
};

// kNoState if no number fits.
StateId number(Network& network, const NumberBounds& bounds, StateId next);

}  // namespace mr::text::grammar
