// The chat page: one HTML file inside the program, joined by cmake/page.cmake.
#pragma once

#include <string_view>

namespace mr::serve {

// The page as UTF-8 text, for `text/html; charset=utf-8`.
std::string_view page();

// The Content-Security-Policy header that it must be served with: it names the hashes of the page's
// one script and one style, and allows no other and no other host.
std::string_view page_policy();

// Its ETag, quotes included: a browser that has this page need not load it again.
std::string_view page_tag();

}  // namespace mr::serve
