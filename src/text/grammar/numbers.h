// Exact automata for numbers between two bounds, digit by digit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/grammar/network.h"

namespace mr::text::grammar {

// Digits before the point, and after it: 18 fit into every 64-bit integer.
inline constexpr int kMostDigits = 18;

// A decimal number below 10^18 with at most 18 digits after the point.
struct Decimal {
    bool negative = false;
    std::uint64_t whole = 0;
    std::string fraction{};  // digits without trailing zeros

    bool zero() const { return whole == 0 && fraction.empty(); }
    // The value by its shortest decimal digits. Empty if it is too large or has too many digits.
    static std::optional<Decimal> of(std::int64_t value);
    static std::optional<Decimal> of(double value);
};
// Compares by value.
int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
    Decimal value;
    bool included = true;
};

struct NumberBounds {
    std::optional<NumberBound> low{}, high{};
    bool fractions = true;  // allowed; without bounds, also exponents of up to two digits
};

StateId number(Network& network, const NumberBounds& bounds, StateId next);

}  // namespace mr::text::grammar
