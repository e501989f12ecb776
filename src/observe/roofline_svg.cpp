#include "observe/roofline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "observe/html.h"
#include "observe/units.h"

namespace mr::observe {
namespace {

constexpr double kWidth = 760, kHeight = 380;
constexpr double kLeft = 70, kRight = 20, kTop = 20, kBottom = 45;

// A decimal logarithmic axis over whole decades.
struct Axis {
    int low, high;    // powers of ten
    double from, to;  // pixels
    double at(double value) const {
        return from + (std::log10(value) - low) / (high - low) * (to - from);
    }
};

Axis axis_over(double least, double most, double from, double to) {
    Axis axis{static_cast<int>(std::floor(std::log10(least))),
              static_cast<int>(std::ceil(std::log10(most))), from, to};
    if (axis.high <= axis.low) axis.high = axis.low + 1;
    return axis;
}

std::string power(int exponent) {
    if (exponent >= 0 && exponent <= 6) {
        return fmt::format("{:.0f}", std::pow(10.0, exponent));
    }
    if (exponent < 0 && exponent >= -3) {
        return fmt::format("{:.{}f}", std::pow(10.0, exponent), -exponent);
    }
    return fmt::format("1e{}", exponent);
}

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
    return fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1,
        y1, x2, y2);
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       anchor, html_escaped(text));
}

std::string grid(const Axis& x, const Axis& y) {
    std::string svg;
    for (int e = x.low; e <= x.high; ++e) {
        const double at = x.at(std::pow(10.0, e));
        svg += line("grid", at, y.from, at, y.to) + label(at, y.from + 16, "middle", power(e));
    }
    for (int e = y.low; e <= y.high; ++e) {
        const double at = y.at(std::pow(10.0, e));
        svg += line("grid", x.from, at, x.to, at) + label(x.from - 6, at + 4, "end", power(e));
    }
    svg += label((x.from + x.to) / 2, kHeight - 8, "middle", "FLOPs a byte");
    svg += fmt::format(
        "<text transform=\"translate(14 {:.1f}) rotate(-90)\" "
        "text-anchor=\"middle\">GFLOP/s</text>\n",
        (y.from + y.to) / 2);
    return svg;
}

std::string roofs(const Ceilings& ceilings, const Axis& x, const Axis& y) {
    const double read = ceilings.read / 1e9, matrix = ceilings.matrix / 1e9;
    if (read <= 0) return "";
    // The memory roof rises from the left edge, or from the lower one, to the ridge.
    const double top = matrix > 0 ? matrix : std::pow(10.0, y.high);
    double x1 = std::pow(10.0, x.low), x2 = std::min(std::pow(10.0, x.high), top / read);
    x1 = std::max(x1, std::pow(10.0, y.low) / read);
    std::string svg;
    if (x2 > x1) {
        svg += line("roof", x.at(x1), y.at(x1 * read), x.at(x2), y.at(x2 * read));
        svg += label(x.at(x1) + 8, y.at(x1 * read) - 8, "start",
                     fmt::format("memory: {} GB/s", figure(read)));
    }
    if (matrix > 0 && x2 < std::pow(10.0, x.high)) {
        svg += line("roof", x.at(x2), y.at(matrix), x.to, y.at(matrix));
        svg += label(x.to - 4, y.at(matrix) - 6, "end",
                     fmt::format("matrix: {} TFLOP/s", figure(matrix / 1e3)));
    }
    return svg;
}

}  // namespace

int stage_hue(std::string_view name) {
    // Those that every model has lie apart; others are spread by a hash (FNV-1a).
    struct Known {
        std::string_view name;
        int hue;
    };
    constexpr Known kKnown[] = {{"qkv", 210},    {"attention", 30}, {"out", 150},   {"up", 275},
                                {"down", 335},   {"head", 5},       {"sample", 55}, {"norm", 185},
                                {"prefill", 35}, {"decode", 205},   {"print", 120}, {"load", 260}};
    for (const Known& known : kKnown) {
        if (known.name == name) return known.hue;
    }
    std::uint32_t hash = 2166136261u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return static_cast<int>(hash % 360);
}

std::string roofline_svg(const Roofline& r) {
    struct Dot {
        const StageSum* stage;
        double x, y;  // FLOPs a byte, GFLOP/s
    };
    std::vector<Dot> dots;
    for (const StageSum& sum : r.stages) {
        if (sum.flops == 0 || sum.bytes == 0 || sum.seconds <= 0) continue;
        dots.push_back({&sum, sum.flops_per_byte(), sum.flops_per_second() / 1e9});
    }
    if (dots.empty()) return "";
    double least_x = dots[0].x, most_x = dots[0].x, least_y = dots[0].y, most_y = dots[0].y;
    for (const Dot& dot : dots) {
        least_x = std::min(least_x, dot.x), most_x = std::max(most_x, dot.x);
        least_y = std::min(least_y, dot.y), most_y = std::max(most_y, dot.y);
    }
    if (r.ceilings.read > 0 && r.ceilings.matrix > 0) {  // the ridge is in the picture
        most_x = std::max(most_x, 2 * r.ceilings.matrix / r.ceilings.read);
        most_y = std::max(most_y, 1.5 * r.ceilings.matrix / 1e9);
    }
    if (r.ceilings.read > 0) {  // and so is the roof above the dots
        most_y = std::max(most_y, std::min(most_x, 1.0) * r.ceilings.read / 1e9);
    }
    const Axis x = axis_over(least_x, most_x, kLeft, kWidth - kRight);
    const Axis y = axis_over(least_y, most_y, kHeight - kBottom, kTop);

    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" "
        "aria-label=\"roofline of {2}\">\n",
        kWidth, kHeight, html_escaped(r.phase));
    svg += grid(x, y) + roofs(r.ceilings, x, y);
    // Dots from the top down; a label that would lie on another moves below it.
    std::sort(dots.begin(), dots.end(), [](const Dot& a, const Dot& b) { return a.y > b.y; });
    std::vector<std::pair<double, double>> labels;
    for (const Dot& dot : dots) {
        const double px = x.at(dot.x), py = y.at(dot.y);
        double ly = py + 4;
        for (const auto& [ox, oy] : labels) {
            if (std::abs(ox - px) < 90 && std::abs(oy - ly) < 13) ly = oy + 13;
        }
        labels.emplace_back(px, ly);
        svg += fmt::format(
            "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"hsl({} 60% 55%)\"><title>{}"
            "</title></circle>\n",
            px, py, 4 + 8 * std::sqrt(std::clamp(dot.stage->share, 0.0, 1.0)),
            stage_hue(dot.stage->name),
            html_escaped(fmt::format("{}: {} GFLOP/s, {} GB/s, {} FLOPs a byte", dot.stage->name,
                                     figure(dot.y), figure(dot.stage->bytes_per_second() / 1e9),
                                     figure(dot.x))));
        svg += label(px + 14, ly, "start", dot.stage->name);
    }
    return svg + "</svg>";
}

}  // namespace mr::observe
