// What the HTML pages of runs share: their beginning, text made safe, the memory plan.
#pragma once

#include <string>
#include <string_view>

#include "core/arena.h"

namespace mr::observe {

// `text` as it may stand in HTML, between tags or in a quoted attribute; what is not UTF-8, and
// control characters, become U+FFFD.
std::string html_escaped(std::string_view text);

// From the doctype to <body>: the title, the style for light and dark, and a policy under which the
// page cannot reach anything but itself.
std::string html_begin(std::string_view title);

// The plan as a section: a row a purpose, and the sum; `taken`: what the device says, 0: nothing.
std::string plan_html(const MemoryPlan& plan, std::uint64_t taken = 0);

// Through core/output_file.h: whole or not at all.
void write_page(const std::string& path, std::string_view html);

}  // namespace mr::observe
