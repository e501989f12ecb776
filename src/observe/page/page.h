// The page of reports as it is before it has data: one HTML file inside of the program, joined by
// cmake/page.cmake.
#pragma once

#include <string_view>

namespace mr::observe {

// UTF-8 text with a hole, "@DATA@", which Page::html() fills.
std::string_view page();

}  // namespace mr::observe
