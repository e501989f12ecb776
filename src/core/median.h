#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace mr {

// The middle value, or the mean of the two in the middle; of none, 0.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace mr
