#include "core/decimal.h"

#include <algorithm>

namespace mr {
namespace {

constexpr std::int64_t kMostDecimalExponent = 1'000'000'000;

bool decimal_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::size_t Decimal::whole_size() const { return point > 0 ? static_cast<std::size_t>(point) : 0; }

std::size_t Decimal::fraction_size() const {
    const std::int64_t size = static_cast<std::int64_t>(digits.size()) - point;
    return !zero() && size > 0 ? static_cast<std::size_t>(size) : 0;
}

std::string Decimal::whole() const {
    std::string out = digits.substr(0, whole_size());
    out.resize(whole_size(), '0');
    return out;
}

std::string Decimal::fraction() const {
    if (fraction_size() == 0) return {};
    const std::string zeros(point < 0 ? static_cast<std::size_t>(-point) : 0, '0');
    return zeros + digits.substr(std::min(whole_size(), digits.size()));
}

Decimal read_decimal(std::string_view text) {
    Decimal out;
    out.negative = text.starts_with('-');
    if (out.negative) text.remove_prefix(1);
    bool behind = false;
    std::size_t i = 0;
    for (; i < text.size() && (decimal_digit(text[i]) || text[i] == '.'); ++i) {
        if (text[i] == '.') {
            behind = true;
        } else if (text[i] != '0' || !out.digits.empty()) {
            out.digits += text[i];
            out.point += behind ? 0 : 1;
        } else {
            out.point -= behind ? 1 : 0;
        }
    }
    if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
        const bool down = ++i < text.size() && text[i] == '-';
        std::int64_t exponent = 0;
        for (; i < text.size(); ++i) {
            if (!decimal_digit(text[i])) continue;
            exponent = std::min(exponent * 10 + (text[i] - '0'), kMostDecimalExponent);
        }
        out.point += down ? -exponent : exponent;
    }
    while (!out.digits.empty() && out.digits.back() == '0') out.digits.pop_back();
    if (out.zero()) out.point = 0;
    return out;
}

int compare(const Decimal& a, const Decimal& b) {
    if (a.zero() && b.zero()) return 0;
    const int sign_a = a.zero()     ? 0
                       : a.negative ? -1
                                    : 1,
              sign_b = b.zero()     ? 0
                       : b.negative ? -1
                                    : 1;
    if (sign_a != sign_b) return sign_a < sign_b ? -1 : 1;
    // Digits begin with one that is not 0, so that the point decides first.
    const int size = a.point != b.point ? (a.point < b.point ? -1 : 1) : a.digits.compare(b.digits);
    return size == 0 ? 0 : (size < 0) == (sign_a > 0) ? -1 : 1;
}

}  // namespace mr
