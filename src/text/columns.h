// How much room a text takes on a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace mr::text {

// Columns of a line without control characters. CJK characters and emoji take two, marks over
// another character none. What is no UTF-8 takes one, as U+FFFD. Of an emoji that is made of
// several each counts, as terminals draw them that do not join them.
std::size_t columns_of(std::string_view text);

}  // namespace mr::text
