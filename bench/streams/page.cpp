#include "bench/streams/page.h"

#include <fmt/format.h>

#include <cmath>

#include "observe/html.h"
#include "observe/units.h"

namespace mr::streams {
namespace {

using observe::html_escaped;
using observe::percent;
using observe::short_seconds;

constexpr double kWidth = 1120, kLeft = 80, kRight = 10, kTop = 20, kRow = 22, kBar = 18;
constexpr int kHues[] = {210, 35, 140};  // a track each

int hue_of(const std::string& track) {
    if (track == "copy out") return kHues[2];
    return track == "compute" || track == "long job" ? kHues[1] : kHues[0];
}

double end_of(const Timeline& timeline) {
    double end = 0;
    for (const Bar& bar : timeline.bars) end = std::max(end, bar.begin + bar.seconds);
    return end;
}

// 1, 2 or 5 times a power of ten: some eight of them in `seconds`.
double tick_of(double seconds) {
    const double rough = seconds / 8, ten = std::pow(10.0, std::floor(std::log10(rough)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor * ten >= rough) return factor * ten;
    }
    return 10 * ten;
}

std::string rung_title(const Schedule& s) {
    return fmt::format("{}: {} memory, {} stream{}, {} chunk{}", s.name,
                       s.pinned ? "pinned" : "pageable", s.streams, s.streams == 1 ? "" : "s",
                       s.cut.chunks, s.cut.chunks == 1 ? "" : "s");
}

std::string rung_table(const Report& report) {
    std::string html =
        "<div class=\"wide\"><table><tr><th>rung<th>streams<th>chunks<th>memory<th>time"
        "<th>speed-up<th>of the limit</tr>\n";
    for (const Rung& rung : report.rungs) {
        const Schedule& s = rung.schedule;
        html += fmt::format("<tr{}><td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.2f}x<td>{}</tr>\n",
                            &rung == &report.best() ? " class=\"sum\"" : "", html_escaped(s.name),
                            s.streams, s.cut.chunks, s.pinned ? "pinned" : "pageable",
                            short_seconds(rung.seconds), report.speed_up(rung),
                            percent(report.of_limit(rung)));
    }
    return html + "</table></div>\n";
}

std::string parts_table(const Parts& parts, double bytes) {
    std::string html = "<table><tr><th>part<th>time<th>GB/s</tr>\n";
    for (const auto& [name, seconds, copies] : parts.rows()) {
        html += fmt::format("<tr><td>{}<td>{}<td>{}</tr>\n", name, short_seconds(seconds),
                            copies ? observe::figure(observe::ratio(bytes, seconds) / 1e9) : "");
    }
    return html + fmt::format("<tr class=\"sum\"><td>limit<td>{}<td></tr></table>\n",
                              short_seconds(parts.limit()));
}

std::string section(const std::string& title, const std::string& about, const Timeline& timeline,
                    double seconds) {
    return fmt::format("<h2>{}</h2>\n<p class=\"dim\">{}</p>\n{}\n", html_escaped(title),
                       html_escaped(about), timeline_svg(timeline, seconds, title));
}

std::string key() {
    std::string html = "<p>";
    for (const char* track : {"copy in", "compute", "copy out"}) {
        html += fmt::format(
            "<span class=\"key\" style=\"background:hsl({} 60% 55%)\"></span>{} &nbsp; ",
            hue_of(track), track);
    }
    return html + "</p>\n";
}

}  // namespace

std::string timeline_svg(const Timeline& timeline, double seconds, const std::string& title) {
    if (timeline.bars.empty() || seconds <= 0) return "";
    const double height = kTop + kRow * static_cast<double>(timeline.tracks.size()) + 4;
    const double scale = (kWidth - kLeft - kRight) / seconds;
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" role=\"img\" aria-label=\"timeline: "
        "{}\">\n",
        kWidth, height, kWidth, html_escaped(title));
    const double tick = tick_of(seconds);
    for (int i = 0; i * tick <= seconds; ++i) {
        const double x = kLeft + i * tick * scale;
        svg += fmt::format(
            "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"14\" x2=\"{0:.1f}\" y2=\"{1:.0f}\"/>"
            "<text class=\"dimtext\" x=\"{2:.1f}\" y=\"12\">{3}</text>\n",
            x, height, x + 3, i == 0 ? "0" : short_seconds(i * tick));
    }
    for (std::size_t i = 0; i < timeline.tracks.size(); ++i) {
        svg += fmt::format("<text x=\"4\" y=\"{:.0f}\">{}</text>\n",
                           kTop + kRow * static_cast<double>(i) + 14,
                           html_escaped(timeline.tracks[i]));
    }
    for (const Bar& bar : timeline.bars) {
        const std::string& track = timeline.tracks[static_cast<std::size_t>(bar.track)];
        // Neighbours differ in lightness, so that bars without a gap are told apart.
        svg += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"hsl({} 60% "
            "{}%)\"><title>{} {}: {} at {}</title></rect>\n",
            kLeft + bar.begin * scale, kTop + kRow * bar.track, std::max(bar.seconds * scale, 0.5),
            kBar, hue_of(track), bar.index % 2 == 0 ? 50 : 62, html_escaped(track), bar.index,
            short_seconds(bar.seconds), short_seconds(bar.begin));
    }
    return svg + "</svg>";
}

std::string html_page(const Report& report) {
    const Cut& cut = report.rungs.front().schedule.cut;
    const double bytes = static_cast<double>(cut.count) * sizeof(float);
    std::string html = observe::html_begin("streams");
    html += fmt::format(
        "<h1>Streams on {}</h1>\n<p>{} floats ({}) go to the device, a kernel of {} iterations "
        "computes on them, they come back. {} copy engines.</p>\n",
        html_escaped(report.gpu), cut.count, format_bytes(cut.count * sizeof(float)),
        report.iterations, report.copy_engines);
    const Rung& best = report.best();
    html += fmt::format(
        "<p>Fastest: {}, {}, {:.2f}x the synchronous one, {} of the limit. The engineering log: "
        "{:.2f}x from {} streams.</p>\n",
        html_escaped(rung_title(best.schedule)), short_seconds(best.seconds), report.speed_up(best),
        percent(report.of_limit(best)), Log::kSpeedUp, Log::kStreams);
    html += "<h2>Rungs</h2>\n" + rung_table(report);
    html += "<h2>Parts</h2>\n" + parts_table(report.parts, bytes);
    html +=
        "<h2>Timelines</h2>\n<p class=\"dim\">A bar a chunk; one scale for all rungs with pinned "
        "memory, another for those with pageable memory. They are from runs of their own: stamps "
        "cost time, and the times in the table are without them. A kernel's bar goes "
        "from its first block to its last; a copy's begins when its stream came to it and the "
        "copies before it in its direction were over.</p>\n" +
        key();
    double longest[2] = {0, 0};  // pageable, pinned
    for (const Rung& rung : report.rungs) {
        double& end = longest[rung.schedule.pinned];
        end = std::max(end, end_of(rung.timeline));
    }
    for (const Rung& rung : report.rungs) {
        html += section(
            rung_title(rung.schedule),
            fmt::format("{} without stamps, {:.2f}x, {} of the limit", short_seconds(rung.seconds),
                        report.speed_up(rung), percent(report.of_limit(rung))),
            rung.timeline, longest[rung.schedule.pinned]);
    }
    html += section("Copies of both directions at once", "A bar a pass over the whole array.",
                    report.parts.duplex, end_of(report.parts.duplex));
    double longest_job = 0;
    for (const Latency& l : report.priorities) {
        longest_job = std::max(longest_job, end_of(l.timeline));
    }
    for (const Latency& l : report.priorities) {
        html += section("A short job " + l.name,
                        fmt::format("{} from its launch to its end, as the host sees it",
                                    short_seconds(l.seconds)),
                        l.timeline, longest_job);
    }
    return html + "</body>\n</html>\n";
}

}  // namespace mr::streams
