// The measurement as a page: the table, and the timeline of each rung.
#pragma once

#include "lab/streams/streams.h"
#include "observe/page.h"

namespace mr::streams {

// Of a report with timelines.
observe::Page report_page(const Report& report);

}  // namespace mr::streams
