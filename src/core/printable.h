// Makes text from a file, an argument or another program safe to show: in errors, notes and the
// output of `info`.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace mr {

// Whether a terminal would obey the character instead of showing it, or would show other text
// differently because of it: controls (C0, DEL, C1), line and paragraph separators, marks that
// change the direction of text, and invisible characters.
bool is_unprintable(char32_t code);

// `text` on one line: unprintable characters as \x1b or \u202e, bytes that are not UTF-8 as \xff.
// Cut to `most_bytes`, at a whole character, with "..." where it was longer.
std::string printable(std::string_view text, std::size_t most_bytes = std::string_view::npos);

// "a.txt, b.txt and 3 more": the first `most` names, each of them printable.
std::string listed(std::span<const std::string> names, std::size_t most);

}  // namespace mr
