#include "observe/page.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "core/output_file.h"
#include "core/read_double.h"
#include "observe/own_file.h"
#include "observe/page/page.h"

namespace mr::observe {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// As many figures as a picture shows: a page stays small. Not finite: null.
Json rounded(double value) {
    if (!std::isfinite(value)) return nullptr;
    char text[32];
    const auto written = std::to_chars(text, std::end(text), value, std::chars_format::general, 6);
    return read_double({text, written.ptr}).value();
}

const char* unit_name(Unit unit) {
    constexpr const char* kNames[] = {"plain", "seconds", "bytes",  "memory",  "figure",
                                      "count", "fixed4",  "factor", "percent", "share"};
    return kNames[static_cast<int>(unit)];
}

Json cell_json(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell.value)) return *text;
    const auto* number = std::get_if<double>(&cell.value);
    if (!number || !std::isfinite(*number)) return nullptr;
    return *number;
}

// [x, mean] or, of several points, [x, mean, least, most]; of a gap [x, null].
Json points_json(const Chart::Curve& curve) {
    const std::size_t count = curve.points.size();
    const std::size_t shares = std::min(count, kMostCurvePoints);
    Json all = Json::array();
    for (std::size_t s = 0; s < shares; ++s) {
        const std::size_t begin = s * count / shares, end = (s + 1) * count / shares;
        double x = 0, mean = 0, least = INFINITY, most = -INFINITY;
        std::size_t finite = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const double y = curve.points[i].second;
            if (!std::isfinite(y)) continue;
            x += curve.points[i].first, mean += y, ++finite;
            least = std::min(least, y), most = std::max(most, y);
        }
        const auto n = static_cast<double>(finite);
        if (finite == 0) {
            all.push_back({rounded(curve.points[begin].first), nullptr});
        } else if (least < most) {
            all.push_back({rounded(x / n), rounded(mean / n), rounded(least), rounded(most)});
        } else {
            all.push_back({rounded(x / n), rounded(mean / n)});
        }
    }
    return all;
}

// JSON in which nothing ends the script that holds it, or begins a comment.
std::string script_safe(const std::string& json) {
    std::string safe;
    for (const char c : json) {
        if (c == '<') {
            safe += "\\u003c";
        } else {
            safe += c;
        }
    }
    return safe;
}

}  // namespace

Table plan_table(const MemoryPlan& plan, std::uint64_t taken) {
    Table table{.title = "Memory plan", .columns = {{"what"}, {"bytes", Unit::memory}}};
    if (plan.items().empty()) return table;
    for (const MemoryPlan::Item& item : plan.items()) {
        table.rows.push_back({{item.name, item.bytes}});
    }
    table.rows.push_back({{"in all", plan.total()}, true});
    if (taken > 0) table.rows.push_back({{"taken, by the driver's account", taken}});
    return table;
}

void Page::add(const Table& table) {
    if (table.rows.empty()) return;
    Json columns = Json::array(), rows = Json::array();
    for (const Table::Column& column : table.columns) {
        columns.push_back({{"name", column.name}, {"unit", unit_name(column.unit)}});
    }
    for (const Table::Row& row : table.rows) {
        Json cells = Json::array();
        for (const Cell& cell : row.cells) cells.push_back(cell_json(cell));
        rows.push_back({{"cells", cells}, {"sum", row.sum}});
    }
    sections_.push_back(text_of({{"kind", "table"},
                                 {"title", table.title},
                                 {"columns", columns},
                                 {"rows", rows},
                                 {"notes", table.notes},
                                 {"keys", table.keys}}));
}

void Page::add(const Chart& chart) {
    Json curves = Json::array(), levels = Json::array();
    for (const Chart::Curve& curve : chart.curves) {
        if (curve.points.empty()) continue;
        curves.push_back(
            {{"name", curve.name}, {"points", points_json(curve)}, {"dots", curve.dots}});
    }
    if (curves.empty()) return;
    for (const Chart::Level& level : chart.levels) {
        levels.push_back({{"name", level.name}, {"y", rounded(level.y)}});
    }
    sections_.push_back(text_of({{"kind", "chart"},
                                 {"title", chart.title},
                                 {"x", chart.x_name},
                                 {"curves", curves},
                                 {"levels", levels},
                                 {"from_zero", chart.from_zero},
                                 {"may_be_log", chart.may_be_log},
                                 {"notes", chart.notes}}));
}

void Page::add(const Timeline& timeline) {
    Json names = Json::array(), tracks = Json::array();
    std::map<std::string, std::size_t> index;
    bool any = false;
    for (const Timeline::Track& track : timeline.tracks) {
        Json bars = Json::array();
        for (const Timeline::Bar& bar : track.bars) {
            const auto [at, added] = index.emplace(bar.name, index.size());
            if (added) names.push_back(bar.name);
            bars.push_back({at->second, bar.begin, bar.seconds, bar.layer, bar.bytes, bar.flops});
        }
        any = any || !track.bars.empty();
        tracks.push_back({{"name", track.name}, {"bars", bars}});
    }
    if (!any) return;
    sections_.push_back(text_of({{"kind", "timeline"},
                                 {"title", timeline.title},
                                 {"names", names},
                                 {"tracks", tracks},
                                 {"seconds", timeline.seconds},
                                 {"notes", timeline.notes}}));
}

void Page::add(const Texts& texts) {
    if (texts.parts.empty()) return;
    Json parts = Json::array();
    for (const Texts::Part& part : texts.parts) {
        parts.push_back({{"label", part.label}, {"text", part.text}});
    }
    sections_.push_back(text_of({{"kind", "texts"}, {"title", texts.title}, {"parts", parts}}));
}

void Page::add(const Roofline& roofline) {
    Json section = {{"kind", "roofline"}, {"counts", counts_of(roofline)}};
    section.update(roofline_json(roofline));
    sections_.push_back(text_of(section));
}

std::string Page::json() const {
    std::string all = text_of({{"title", title_}, {"lines", lines_}});
    all.pop_back();
    all += ",\"sections\":[";
    for (const std::string& section : sections_) {
        if (&section != &sections_.front()) all += ",\n";
        all += section;
    }
    return all + "]}";
}

std::string Page::html() const {
    constexpr std::string_view kHole = "@DATA@";
    std::string html(page());
    return html.replace(html.find(kHole), kHole.size(), script_safe(json()));
}

void write_page(const std::string& path, const Page& page) {
    require_own_file(path, kPageMark);
    OutputFile file(path);
    file.write(page.html());
    file.commit();
}

}  // namespace mr::observe
