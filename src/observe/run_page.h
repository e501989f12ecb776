// A run as a page: timeline, stage tables, rooflines, memory plan.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "observe/page.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/trace.h"

namespace mr::observe {

struct ShownRun {
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

Page run_page(const ShownRun& run);

}  // namespace mr::observe
