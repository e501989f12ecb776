// A run as one HTML page: timeline, stage tables, roofline picture, memory plan. It needs nothing
// but itself: no network, no library.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "observe/html.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/trace.h"

namespace mr::observe {

struct ReportPage {
    RunNames names;
    std::string summary;  // one line: observe::summary_line()
    std::string prompt, text;
    std::span<const HostSpan> spans;
    std::span<const Step> steps;
    std::vector<Roofline> phases;  // in the order in which they are shown
    MemoryPlan plan;
};

// As many stages as the timeline of a page shows; the tables count all of them.
inline constexpr std::size_t kMostPageStages = 20'000;

std::string html_page(const ReportPage& page);
// Through core/output_file.h: whole or not at all.
void write_html(const std::string& path, const ReportPage& page);

}  // namespace mr::observe
