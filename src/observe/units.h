// Quantities for people, in decimal units, as is usual for bandwidths.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>

namespace mr::observe {

// About three significant figures: 2100 needs no decimals, 0.42 does.
inline std::string figure(double value) {
    return fmt::format("{:.{}f}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

// "1 token", "2 tokens"; `many` where it is not `one` with an s, as in "2 batches".
inline std::string counted(std::integral auto count, const char* one, const char* many = nullptr) {
    if (many && count != 1) return fmt::format("{} {}", count, many);
    return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

inline std::string percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }
inline double ratio(double value, double by) { return by > 0 ? value / by : 0; }

inline std::string short_bytes(double bytes) {
    if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
    if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
    return fmt::format("{:.1f} kB", bytes / 1e3);
}

// Parameters of a model: "6.95 M", "8.03 B".
inline std::string short_count(double count) {
    return count >= 1e9 ? fmt::format("{:.2f} B", count / 1e9) : figure(count / 1e6) + " M";
}

// Durations people wait for: "42 s", "3:41 min", "5:07 h".
inline std::string long_seconds(double seconds) {
    const auto s = static_cast<std::int64_t>(std::llround(seconds));
    if (s < 60) return fmt::format("{} s", s);
    if (s < 3600) return fmt::format("{}:{:02} min", s / 60, s % 60);
    return fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

inline std::string short_seconds(double seconds) {
    if (seconds >= 1) return figure(seconds) + " s";
    if (seconds >= 1e-3) return figure(seconds * 1e3) + " ms";
    return figure(seconds * 1e6) + " us";
}

}  // namespace mr::observe
