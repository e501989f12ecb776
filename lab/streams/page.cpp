#include "lab/streams/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "observe/units.h"

namespace mr::streams {
namespace {

using observe::Cell;
using observe::percent;
using observe::short_seconds;
using observe::Table;
using observe::Unit;

double end_of(const Timeline& timeline) {
    double end = 0;
    for (const Bar& bar : timeline.bars) end = std::max(end, bar.begin + bar.seconds);
    return end;
}

const char* memory_of(const Schedule& s) { return s.pinned ? "pinned" : "pageable"; }

std::string rung_title(const Schedule& s) {
    return fmt::format("{}: {} memory, {} stream{}, {} chunk{}", s.name, memory_of(s), s.streams,
                       s.streams == 1 ? "" : "s", s.cut.chunks, s.cut.chunks == 1 ? "" : "s");
}

Table rung_table(const Report& report) {
    Table table{.title = "Rungs",
                .columns = {{"rung"},
                            {"streams"},
                            {"chunks"},
                            {"memory"},
                            {"time", Unit::seconds},
                            {"speed-up", Unit::factor},
                            {"of the limit", Unit::percent}}};
    for (const Rung& rung : report.rungs) {
        const Schedule& s = rung.schedule;
        table.rows.push_back({{s.name, s.streams, s.cut.chunks, memory_of(s), rung.seconds,
                               report.speed_up(rung), report.of_limit(rung)},
                              &rung == &report.best()});
    }
    table.notes.push_back(
        "In the timelines below a bar is a chunk. All rungs with pinned memory have one scale, "
        "those with pageable memory another. Timelines are from runs of their own: stamps cost "
        "time, and the times in the table are without them. A kernel's bar goes from its first "
        "block to its last; a copy's begins when its stream came to it and the copies before it in "
        "its direction were over.");
    return table;
}

Table parts_table(const Parts& parts, double bytes) {
    Table table{.title = "Parts",
                .columns = {{"part"}, {"time", Unit::seconds}, {"GB/s", Unit::figure}}};
    for (const auto& [name, seconds, copies] : parts.rows()) {
        const Cell rate = copies ? Cell(observe::ratio(bytes, seconds) / 1e9) : Cell();
        table.rows.push_back({{name, seconds, rate}});
    }
    table.rows.push_back({{"limit", parts.limit(), Cell()}, true});
    return table;
}

// `seconds`: the width of the picture, the same for those that are compared.
observe::Timeline section(std::string title, std::string about, const Timeline& timeline,
                          double seconds) {
    observe::Timeline shown{
        .title = std::move(title), .seconds = seconds, .notes = {std::move(about)}};
    for (const std::string& track : timeline.tracks) shown.tracks.push_back({track});
    for (const Bar& bar : timeline.bars) {
        observe::Timeline::Track& track = shown.tracks[static_cast<std::size_t>(bar.track)];
        track.bars.push_back({track.name, bar.begin, bar.seconds});
    }
    return shown;
}

}  // namespace

observe::Page report_page(const Report& report) {
    const Cut& cut = report.rungs.front().schedule.cut;
    observe::Page page("Streams on " + report.gpu);
    page.add_line(fmt::format(
        "{} floats ({}) go to the device, a kernel of {} iterations computes on them, they come "
        "back. {} copy engines.",
        cut.count, format_bytes(cut.count * sizeof(float)), report.iterations,
        report.copy_engines));
    const Rung& best = report.best();
    page.add_line(fmt::format(
        "Fastest: {}, {}, {:.2f}x the synchronous one, {} of the limit. The engineering log: "
        "{:.2f}x from {} streams.",
        rung_title(best.schedule), short_seconds(best.seconds), report.speed_up(best),
        percent(report.of_limit(best)), Log::kSpeedUp, Log::kStreams));
    page.add(rung_table(report));
    page.add(parts_table(report.parts, static_cast<double>(cut.count) * sizeof(float)));
    double longest[2] = {0, 0};  // pageable, pinned
    for (const Rung& rung : report.rungs) {
        double& end = longest[rung.schedule.pinned];
        end = std::max(end, end_of(rung.timeline));
    }
    for (const Rung& rung : report.rungs) {
        page.add(section(
            rung_title(rung.schedule),
            fmt::format("{} without stamps, {:.2f}x, {} of the limit", short_seconds(rung.seconds),
                        report.speed_up(rung), percent(report.of_limit(rung))),
            rung.timeline, longest[rung.schedule.pinned]));
    }
    page.add(section("Copies of both directions at once", "A bar is a pass over the whole array.",
                     report.parts.duplex, end_of(report.parts.duplex)));
    double longest_job = 0;
    for (const Latency& l : report.priorities) {
        longest_job = std::max(longest_job, end_of(l.timeline));
    }
    for (const Latency& l : report.priorities) {
        page.add(section("A short job " + l.name,
                         fmt::format("{} from its launch to its end, as the host sees it",
                                     short_seconds(l.seconds)),
                         l.timeline, longest_job));
    }
    return page;
}

}  // namespace mr::streams
