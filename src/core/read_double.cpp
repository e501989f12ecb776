#include "core/read_double.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <system_error>

namespace mr {
namespace {

// The double nearest to a number outside the range of doubles: its power of ten says which end.
// `text` is well formed and has no sign.
double beyond_range(std::string_view text) {
    constexpr std::int64_t kFar = std::int64_t{1} << 60;
    const std::size_t e = text.find_first_of("eE");
    const std::string_view digits = text.substr(0, e);
    const std::size_t first = digits.find_first_not_of("0.");
    if (first == digits.npos) return 0;
    std::int64_t power = 0;
    if (e != text.npos) {
        std::string_view exponent = text.substr(e + 1);
        const bool negative = exponent.starts_with('-');
        if (exponent.starts_with('+')) exponent.remove_prefix(1);
        const char* const end = exponent.data() + exponent.size();
        const bool read = std::from_chars(exponent.data(), end, power).ec == std::errc{};
        power = read ? std::clamp(power, -kFar, kFar) : negative ? -kFar : kFar;
    }
    const std::size_t point = std::min(digits.find('.'), digits.size());
    // Above 0 before the point, below 0 behind it.
    const auto place = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
    return place + power > 0 ? std::numeric_limits<double>::infinity() : 0.0;
}

}  // namespace

std::optional<double> read_double(std::string_view text) {
    if (text.starts_with('+')) {
        text.remove_prefix(1);
        if (text.starts_with('-')) return std::nullopt;
    }
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (rest != end || error == std::errc::invalid_argument) return std::nullopt;
    if (error != std::errc::result_out_of_range) return value;
    const bool negative = text.starts_with('-');
    const double size = beyond_range(negative ? text.substr(1) : text);
    return negative ? -size : size;
}

double shortest_double(float value) {
    char digits[32];
    const auto written = std::to_chars(digits, digits + sizeof digits, value);
    double out = 0;
    std::from_chars(digits, written.ptr, out);
    return out;
}

}  // namespace mr
