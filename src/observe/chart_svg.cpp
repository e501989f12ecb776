#include "observe/chart_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "observe/html.h"

namespace mr::observe {
namespace {

constexpr double kWidth = 760, kHeight = 260;
constexpr double kLeft = 64, kRight = 16, kTop = 28, kBottom = 40;

// Numbers of ticks: as many figures as they need, "12k" for thousands.
std::string tick_label(double value) {
    const double size = std::abs(value);
    if (size >= 1e9) return fmt::format("{:g}G", value / 1e9);
    if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
    if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
    return fmt::format("{:g}", value);
}

class Axis {
  public:
    Axis(double low, double high, bool log, double from, double to)
        : low_(low), high_(high), log_(log), from_(from), to_(to) {
        if (log_) {
            low_ = std::log10(low), high_ = std::log10(high);
        }
        if (!(high_ > low_)) {  // one value: in the middle
            const double room = log_ || low_ == 0 ? 0.5 : std::abs(low_) / 2;
            low_ -= room, high_ += room;
        }
    }
    double at(double value) const {
        const double v = log_ ? std::log10(value) : value;
        return from_ + (v - low_) / (high_ - low_) * (to_ - from_);
    }
    double from() const { return from_; }
    double to() const { return to_; }
    // Round values inside of the axis: 1, 2 and 5 times a power of ten.
    std::vector<double> ticks() const {
        std::vector<double> all;
        if (log_) {
            const bool few = high_ - low_ > 3;
            for (int e = static_cast<int>(std::floor(low_)); e <= std::ceil(high_); ++e) {
                for (const double f : {1.0, 2.0, 5.0}) {
                    if (few && f > 1) continue;
                    add(all, f * std::pow(10.0, e), std::log10(f) + e);
                }
            }
            if (all.size() >= 2) return all;
            all.clear();  // no two round values inside: its ends
            return {std::pow(10.0, low_), std::pow(10.0, high_)};
        }
        const double rough = (high_ - low_) / 5,
                     ten = std::pow(10.0, std::floor(std::log10(rough)));
        double step = 10 * ten;
        for (const double f : {5.0, 2.0, 1.0}) {
            if (f * ten >= rough) step = f * ten;
        }
        const double first = std::ceil(low_ / step);
        for (int i = 0; i < 20; ++i) {
            const double value = (first + i) * step;
            add(all, value, value);
        }
        return all;
    }

  private:
    void add(std::vector<double>& all, double value, double place) const {
        const double slack = 1e-9 * (high_ - low_);
        if (place >= low_ - slack && place <= high_ + slack) all.push_back(value);
    }

    double low_, high_;
    bool log_;
    double from_, to_;
};

// One point of what is drawn.
struct Drawn {
    double x = 0, mean = 0, least = 0, most = 0;
};

std::vector<Drawn> drawn_points(const Chart::Curve& curve) {
    const std::size_t count = curve.points.size();
    const std::size_t shares = std::min(count, kMostCurvePoints);
    std::vector<Drawn> all;
    for (std::size_t s = 0; s < shares; ++s) {
        const std::size_t begin = s * count / shares, end = (s + 1) * count / shares;
        Drawn d{0, 0, INFINITY, -INFINITY};
        std::size_t finite = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const auto& [x, y] = curve.points[i];
            if (!std::isfinite(y)) continue;
            d.x += x, d.mean += y, ++finite;
            d.least = std::min(d.least, y), d.most = std::max(d.most, y);
        }
        if (finite) {
            d.x /= static_cast<double>(finite), d.mean /= static_cast<double>(finite);
        } else {
            d = {curve.points[begin].first, NAN, NAN, NAN};  // a gap
        }
        all.push_back(d);
    }
    return all;
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
    return fmt::format("<line {} x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       style, x1, y1, x2, y2);
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       anchor, html_escaped(text));
}

std::string curve_svg(const Chart::Curve& curve, const std::vector<Drawn>& points, const Axis& x,
                      const Axis& y) {
    std::string mean, band, dots;
    // Each run between gaps is a path of its own.
    for (std::size_t begin = 0; begin < points.size();) {
        if (!std::isfinite(points[begin].mean)) {
            ++begin;
            continue;
        }
        std::size_t end = begin;
        while (end < points.size() && std::isfinite(points[end].mean)) ++end;
        bool wide = false;
        for (std::size_t i = begin; i < end; ++i) {
            mean += fmt::format("{}{:.1f} {:.1f}", i == begin ? "M" : "L", x.at(points[i].x),
                                y.at(points[i].mean));
            wide = wide || points[i].most > points[i].least;
            if (curve.dots || end - begin == 1) {
                dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>\n",
                                    x.at(points[i].x), y.at(points[i].mean));
            }
        }
        if (wide) {
            for (std::size_t i = begin; i < end; ++i) {
                band += fmt::format("{}{:.1f} {:.1f}", i == begin ? "M" : "L", x.at(points[i].x),
                                    y.at(points[i].most));
            }
            for (std::size_t i = end; i-- > begin;) {
                band += fmt::format("L{:.1f} {:.1f}", x.at(points[i].x), y.at(points[i].least));
            }
            band += "Z";
        }
        begin = end;
    }
    const std::string colour = fmt::format("hsl({} 65% 50%)", curve.hue);
    std::string svg;
    if (!band.empty()) {
        svg += fmt::format("<path d=\"{}\" fill=\"{}\" fill-opacity=\"0.2\"/>\n", band, colour);
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", mean,
                       colour);
    if (!dots.empty()) svg += fmt::format("<g fill=\"{}\">{}</g>\n", colour, dots);
    return svg;
}

}  // namespace

std::string chart_svg(const Chart& chart) {
    std::vector<std::vector<Drawn>> drawn;
    double x_low = INFINITY, x_high = -INFINITY, low = INFINITY, high = -INFINITY;
    for (const Chart::Curve& curve : chart.curves) {
        for (const Drawn& d : drawn.emplace_back(drawn_points(curve))) {
            if (!std::isfinite(d.mean)) continue;
            x_low = std::min(x_low, d.x), x_high = std::max(x_high, d.x);
            low = std::min(low, d.least), high = std::max(high, d.most);
        }
    }
    if (!(x_low <= x_high)) return "";
    for (const Chart::Level& level : chart.levels) {
        low = std::min(low, level.y), high = std::max(high, level.y);
    }
    const bool log = chart.may_be_log && low > 0 && high > 4 * low;
    if (log) {
        low *= 0.95, high *= 1.05;
    } else {
        if (chart.from_zero) low = std::min(low, 0.0);
        const double room = 0.04 * (high - low);
        high += room;
        if (!(chart.from_zero && low == 0)) low -= room;
    }
    const Axis x(x_low, x_high, false, kLeft, kWidth - kRight);
    const Axis y(low, high, log, kHeight - kBottom, kTop);

    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" "
        "aria-label=\"{2}\">\n",
        kWidth, kHeight, html_escaped(chart.title));
    for (const double value : x.ticks()) {
        svg += line("class=\"grid\"", x.at(value), y.from(), x.at(value), y.to());
        svg += label(x.at(value), y.from() + 16, "middle", tick_label(value));
    }
    for (const double value : y.ticks()) {
        svg += line("class=\"grid\"", x.from(), y.at(value), x.to(), y.at(value));
        svg += label(x.from() - 6, y.at(value) + 4, "end", tick_label(value));
    }
    svg += label((x.from() + x.to()) / 2, kHeight - 6, "middle", chart.x_name);
    double key = kLeft;  // the names stand above, one after the other
    const auto add_key = [&](const std::string& style, const std::string& name) {
        svg += line(style.c_str(), key, 14, key + 18, 14) + label(key + 24, 18, "start", name);
        key += 40 + 7.0 * static_cast<double>(name.size());
    };
    for (std::size_t i = 0; i < drawn.size(); ++i) {
        const std::string curve = curve_svg(chart.curves[i], drawn[i], x, y);
        if (drawn[i].empty()) continue;
        svg += curve;
        add_key(fmt::format("stroke=\"hsl({} 65% 50%)\" stroke-width=\"2.5\"", chart.curves[i].hue),
                chart.curves[i].name);
    }
    for (const Chart::Level& level : chart.levels) {
        const std::string style = "class=\"roof\" stroke-dasharray=\"5 4\"";
        svg += line(style.c_str(), x.from(), y.at(level.y), x.to(), y.at(level.y));
        add_key(style, level.name);
    }
    return svg + "</svg>\n";
}

}  // namespace mr::observe
