// The supported values of the keyword "format" for strings.
#pragma once

#include <string>
#include <string_view>

namespace mr::text::grammar {

// The pattern of a format; empty if it is not supported.
std::string_view pattern_of_format(std::string_view format);
// "date, time, ..."
std::string supported_formats();

}  // namespace mr::text::grammar
