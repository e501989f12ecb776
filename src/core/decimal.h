// Decimal numbers of any length, as JSON writes them: digits that a double could not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mr {

// 0.DIGITS times 10^point.
struct Decimal {
    bool negative = false;
    std::string digits{};    // without zeros at either end; none: the number is 0
    std::int64_t point = 0;  // 0 if the number is 0

    bool zero() const { return digits.empty(); }
    // Digits before the point, without leading zeros, and behind it, without trailing ones.
    std::size_t whole_size() const;
    std::size_t fraction_size() const;
    std::string whole() const;
    std::string fraction() const;
    bool operator==(const Decimal&) const = default;
};

// A number in JSON's spelling: "-12.50e3". The sign of zero is kept. Exponents beyond 10^9 count as
// 10^9.
Decimal read_decimal(std::string_view text);
// By value: below 0, 0 or above 0.
int compare(const Decimal& a, const Decimal& b);

}  // namespace mr
