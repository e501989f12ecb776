// Numbers from text with a decimal point, whatever locale the process has: strtod and its kin would
// read "0.6" as 0 in a program that embeds this library under a locale with decimal commas.
#pragma once

#include <optional>
#include <string_view>

namespace mr {

// The number that all of `text` is, such as "1.5", "-2e-3" or "inf"; a plus sign may precede it.
// Empty if it is no number. Like strtod, it gives infinity for a number too large for a double, and
// zero for one too small.
std::optional<double> read_double(std::string_view text);

// The double with the shortest digits that read back as `value`: 1e-05, not 9.999999747378752e-06.
double shortest_double(float value);

}  // namespace mr
