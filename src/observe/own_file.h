// Files that a report may replace: an earlier report. Any other file of that name, such as the
// model itself, is kept.
#pragma once

#include <string>
#include <string_view>

namespace mr::observe {

// The first bytes of a page and of a trace.
inline constexpr std::string_view kPageBegins = "<!doctype html>";
inline constexpr std::string_view kTraceBegins = "{\"displayTimeUnit\":";

// Throws Error (usage) if `path` is a file with content that does not begin so.
void require_own_file(const std::string& path, std::string_view beginning);

}  // namespace mr::observe
