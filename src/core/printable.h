// Text from a file, an argument or another program as it may be shown to a person: in errors, notes
// and what `info` prints.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mr {

// Whether a terminal obeys the character instead of showing it, or shows others differently because
// of it: controls (C0, DEL, C1), line and paragraph separators, marks that turn the direction of
// text, and characters that cannot be seen.
bool is_unprintable(char32_t code);

// `text` on one line: what is unprintable as \x1b or \u202e, bytes that are no UTF-8 as \xff. The
// first `most_bytes`, up to a whole character, and "..." where there is more.
std::string printable(std::string_view text, std::size_t most_bytes = std::string_view::npos);

}  // namespace mr
