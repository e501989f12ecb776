#include "observe/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "observe/report_page.h"
#include "observe/roofline_svg.h"
#include "observe/units.h"

namespace mr::observe {
namespace {

using Json = nlohmann::ordered_json;

// The timeline's events; the host's first, then as many stages as a page shows.
Json timeline_data(const ReportPage& page, bool& cut) {
    Json names = Json::array();
    std::map<std::string, std::size_t> index;
    const auto name_index = [&](const std::string& name) {
        const auto [at, added] = index.emplace(name, index.size());
        if (added) names.push_back({name, stage_hue(name)});
        return at->second;
    };
    const auto us = [](double seconds) { return seconds * 1e6; };
    Json host = Json::array(), device = Json::array();
    for (const HostSpan& span : page.spans) {
        host.push_back({name_index(span.name), us(span.begin), us(span.seconds), -1, 0, 0});
        if (host.size() >= kMostPageStages) break;
    }
    cut = false;
    for (const Step& step : page.steps) {
        // Whole steps only, the first always.
        cut = !device.empty() && device.size() + step.stages.size() > kMostPageStages;
        if (cut) break;
        for (const Stage& s : step.stages) {
            device.push_back({name_index(s.name), us(step.begin + s.begin), us(s.work.seconds),
                              s.layer, s.work.bytes(), s.work.flops});
        }
    }
    return {{"names", names},
            {"tracks",
             {{{"name", "host"}, {"events", host}},
              {{"name", "device: " + page.names.device}, {"events", device}}}}};
}

// JSON inside of <script>: nothing in it may look like the end of the script.
std::string script_safe(const Json& json) {
    std::string safe;
    for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
        if (c == '<') {
            safe += "\\u003c";
        } else if (c == '&') {
            safe += "\\u0026";
        } else {
            safe += c;
        }
    }
    return safe;
}

std::string stage_table(const Roofline& r) {
    const auto steps = static_cast<double>(std::max<std::int64_t>(r.steps, 1));
    const char* const step = r.made ? "pass" : "step";
    std::string html = fmt::format(
        "<div class=\"wide\"><table><tr><th>stage<th>calls<th>time a {}<th>share<th>bytes a "
        "{}<th>GB/s<th>GFLOP/s<th>of the ceiling<th>roof</tr>\n",
        step, step);
    const auto row = [&](const StageSum& sum, bool total) {
        html += fmt::format(
            "<tr{}><td>{}{}<td>{}<td>{}<td>{}<span class=\"bar\" style=\"width:{:.1f}px\"></span>"
            "<td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n",
            total ? " class=\"sum\"" : "",
            total ? ""
                  : fmt::format("<span class=\"key\" style=\"background:hsl({} 60% 55%)\"></span>",
                                stage_hue(sum.name)),
            html_escaped(sum.name), sum.calls, short_seconds(sum.seconds / steps),
            percent(sum.share), total ? 0.0 : 80 * sum.share,
            short_bytes(static_cast<double>(sum.bytes) / steps),
            figure(sum.bytes_per_second() / 1e9), figure(sum.flops_per_second() / 1e9),
            sum.roof == Roof::none ? "" : percent(sum.of_ceiling), roof_name(sum.roof));
    };
    const auto rest = [&](const char* name, double seconds) {
        html += fmt::format("<tr class=\"dim\"><td>{}<td><td>{}<td>{}<td><td><td><td><td></tr>\n",
                            name, short_seconds(seconds / steps),
                            percent(r.seconds > 0 ? seconds / r.seconds : 0));
    };
    for (const StageSum& sum : r.stages) row(sum, false);
    row(r.all, true);
    rest("between stages", r.gaps);
    rest(r.made ? "between passes" : "between steps", r.outside);
    return html + "</table></div>\n";
}

std::string phase_section(const Roofline& r) {
    std::string html = fmt::format("<h2>{}: {}, {}</h2>\n", html_escaped(r.phase), counts_of(r),
                                   short_seconds(r.seconds));
    html += stage_table(r);
    html += fmt::format(
        "<p class=\"dim\">Host to device {:.0f} bytes a {}, device to host {:.0f}. Above 100% "
        "of the ceiling: the bytes came out of a cache.</p>\n",
        r.to_device_per_token, r.made ? "row" : "token", r.to_host_per_token);
    return html + roofline_svg(r) + "\n";
}

std::string ceilings_table(const Ceilings& c) {
    std::string html = "<h2>Ceilings measured on this machine</h2>\n<table>";
    const auto row = [&](const char* name, double value, double unit, const char* unit_name) {
        if (value <= 0) return;
        html += fmt::format("<tr><td>{}<td>{} {}</tr>\n", name, figure(value / unit), unit_name);
    };
    row("memory, read", c.read, 1e9, "GB/s");
    row("memory, copied (read and written)", c.copy, 1e9, "GB/s");
    row("matrix products", c.matrix, 1e12, "TFLOP/s");
    row("host to device, pinned", c.to_device, 1e9, "GB/s");
    row("device to host, pinned", c.to_host, 1e9, "GB/s");
    return html + "</table>\n";
}

}  // namespace

std::string html_page(const ReportPage& page) {
    bool cut = false;
    const Json data = timeline_data(page, cut);
    const std::string model = html_escaped(page.names.model);
    std::string html = html_begin(page.names.model);
    html += fmt::format("<h1>{}</h1>\n<p>{}</p>\n<p class=\"dim\">device: {}</p>\n", model,
                        html_escaped(page.summary), html_escaped(page.names.device));
    html +=
        "<h2>Timeline</h2>\n<div id=\"timeline\" tabindex=\"0\" role=\"img\" aria-label=\"timeline "
        "of the host's phases and the device's stages\"><canvas></canvas><div id=\"tip\"></div>"
        "</div>\n<p class=\"dim\">Wheel or + and - zoom, dragging or the arrows move, a double "
        "click or 0 shows all.";
    if (cut) html += fmt::format(" The first {} stages are shown.", kMostPageStages);
    html += "</p>\n";
    for (const Roofline& phase : page.phases) html += phase_section(phase);
    if (!page.phases.empty()) html += ceilings_table(page.phases.front().ceilings);
    html += plan_html(page.plan);
    html += fmt::format("<h2>Prompt</h2>\n<pre>{}</pre>\n<h2>Answer</h2>\n<pre>{}</pre>\n",
                        html_escaped(page.prompt), html_escaped(page.text));
    html += "<script type=\"application/json\" id=\"data\">" + script_safe(data) + "</script>\n";
    html += fmt::format("<script>{}</script>\n</body>\n</html>\n", kPageScript);
    return html;
}

void write_html(const std::string& path, const ReportPage& page) {
    write_page(path, html_page(page));
}

}  // namespace mr::observe
