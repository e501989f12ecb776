// Curves over a common axis, as a picture for a page.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mr::observe {

struct Chart {
    struct Curve {
        std::string name;
        int hue = 210;                                  // 0 to 359
        std::vector<std::pair<double, double>> points;  // by rising x; what is not finite is a gap
        bool dots = false;                              // few points that each count: marked
    };
    struct Level {
        std::string name;
        double y = 0;
    };
    std::string title{};   // for those who do not see it
    std::string x_name{};  // "step"
    std::vector<Curve> curves{};
    std::vector<Level> levels{};  // dashed lines right across
    bool from_zero = false;       // the y axis begins at 0
    // Logarithmic where the values are positive and spread over more than a factor of four.
    bool may_be_log = false;
};

// As many points as a curve is drawn with. Of a longer one, equal shares of its points are drawn as
// their mean, above a paler band from the least to the most of each.
inline constexpr std::size_t kMostCurvePoints = 400;

// An <svg>; empty where no curve has a point.
std::string chart_svg(const Chart& chart);

}  // namespace mr::observe
