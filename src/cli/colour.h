// Colours, and what a terminal obeys.
#pragma once

#include <string>
#include <string_view>

namespace mr::cli {

// Whether this descriptor is a terminal that moves its cursor when told to: TERM names one, and not
// "dumb".
bool obeys_codes(int fd);

enum class Look { prompt, faint, warning, failure, name };

// The text in that colour, where the descriptor obeys codes and NO_COLOR (no-color.org) is not set;
// otherwise as it is.
std::string painted(int fd, Look look, std::string_view text);
// The codes before and after such a text; empty: no colours.
struct Paint {
    std::string_view begin, end;
};
Paint paint(int fd, Look look);

}  // namespace mr::cli
