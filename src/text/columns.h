// The width of a text on a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace mr::text {

// Columns of a line without control characters. CJK characters and emoji take two, combining marks
// none. Invalid UTF-8 takes one, as U+FFFD. Each part of a joined emoji counts, because many
// terminals do not join them.
std::size_t columns_of(std::string_view text);
// The beginning of the line that takes at most this many columns, cut at a whole character with its
// marks.
std::string_view cut_to_columns(std::string_view line, std::size_t columns);

}  // namespace mr::text
