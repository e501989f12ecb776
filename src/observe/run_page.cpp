#include "observe/run_page.h"

#include <fmt/format.h>

namespace mr::observe {
namespace {

// The host's phases, and as many of the device's stages as a page shows.
Timeline timeline_of(const ShownRun& run) {
    Timeline timeline{.title = "Timeline",
                      .tracks = {{.name = "host"}, {.name = "device: " + run.names.device}}};
    std::vector<Timeline::Bar>& host = timeline.tracks[0].bars;
    for (const HostSpan& span : run.spans) {
        host.push_back({span.name, span.begin, span.seconds});
        if (host.size() >= kMostPageStages) break;
    }
    std::vector<Timeline::Bar>& device = timeline.tracks[1].bars;
    for (const Step& step : run.steps) {
        // Whole steps only, the first always.
        if (!device.empty() && device.size() + step.stages.size() > kMostPageStages) {
            timeline.notes.push_back(
                fmt::format("The first {} stages are shown.", kMostPageStages));
            break;
        }
        for (const Stage& s : step.stages) {
            device.push_back({s.name, step.begin + s.begin, s.work.seconds, s.layer, s.work.bytes(),
                              s.work.flops});
        }
    }
    return timeline;
}

Table ceilings_table(const Ceilings& c) {
    Table table{.title = "Ceilings measured on this machine",
                .columns = {{"what"}, {"rate", Unit::figure}, {"unit"}}};
    const auto row = [&](const char* name, double value, const char* unit) {
        if (value > 0) table.rows.push_back({{name, value / 1e9, unit}});
    };
    row("memory, read", c.read, "GB/s");
    row("memory, copied (read and written)", c.copy, "GB/s");
    row("matrix products", c.matrix, "GFLOP/s");
    row("multiply-adds in f32", c.f32, "GFLOP/s");
    row("products of 8-bit integers", c.int8, "GFLOP/s");
    row("products in bf16 (no operation uses them)", c.bf16, "GFLOP/s");
    row("host to device, pinned", c.to_device, "GB/s");
    row("device to host, pinned", c.to_host, "GB/s");
    return table;
}

}  // namespace

Page run_page(const ShownRun& run) {
    Page page(run.names.model);
    page.add_line(run.summary);
    page.add_line("device: " + run.names.device);
    page.add(timeline_of(run));
    for (const Roofline& phase : run.phases) page.add(phase);
    if (!run.phases.empty()) page.add(ceilings_table(run.phases.front().ceilings));
    page.add(plan_table(run.plan));
    page.add(Texts{"Text", {{"prompt", run.prompt}, {"answer", run.text}}});
    return page;
}

}  // namespace mr::observe
