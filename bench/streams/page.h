// The measurement as one HTML page: the table, and the timeline of each rung.
#pragma once

#include <string>

#include "bench/streams/streams.h"

namespace mr::streams {

// Of a report with timelines.
std::string html_page(const Report& report);
// The bars of one timeline as an <svg> whose width is `seconds`.
std::string timeline_svg(const Timeline& timeline, double seconds, const std::string& title);

}  // namespace mr::streams
