#include "cli/rate.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "core/error.h"

namespace mr::cli {
namespace {

struct Unit {
    std::string_view name;
    double bytes;
};
constexpr Unit kUnits[] = {
    {"B/s", 1},        {"kB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},
    {"TB/s", 1e12},    {"KiB/s", 0x1p10}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30},
    {"TiB/s", 0x1p40}, {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8},
};

}  // namespace

double parse_rate(const std::string& text, const char* option) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
    if (error == std::errc{} && std::isfinite(value) && value > 0) {
        for (const Unit& known : kUnits) {
            if (unit == known.name) return value * known.bytes;
        }
        throw Error::usage({.field = option,
                            .value = text,
                            .problem = unit.empty() ? "has no unit" : "has an unknown unit",
                            .remedy = "use GB/s, GiB/s, or Gb/s for bits, as in 400Gb/s"});
    }
    throw Error::usage({.field = option,
                        .value = text,
                        .problem = "must be a rate above 0",
                        .remedy = "give a number and a unit, as in 900GB/s or 400Gb/s"});
}

std::uint64_t parse_memory(const std::string& text, const char* option) {
    constexpr Unit kSizes[] = {{"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                               {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
    for (const Unit& known : kSizes) {
        const double bytes = value * known.bytes;
        if (error == std::errc{} && unit == known.name && bytes >= 1 && bytes <= 0x1p60) {
            return static_cast<std::uint64_t>(bytes);
        }
    }
    throw Error::usage({.field = option,
                        .value = text,
                        .problem = "is not an amount of memory",
                        .remedy = "give a number and MB, GB, TB, MiB, GiB or TiB, as in 24GB"});
}

}  // namespace mr::cli
