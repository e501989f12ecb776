// Numerical gradients, for the tests of backward ops.
#pragma once

#include <cstddef>
#include <vector>

namespace mr::ops::testing {

// The derivative of loss() by `at`, in f64: central differences of fourth order. For losses and
// arguments of magnitude about 1 both the step and rounding leave an error of about 1e-12.
template <typename Loss>
double slope(double& at, Loss&& loss, double step = 1e-3) {
    const double middle = at;
    const auto moved = [&](double by) {
        at = middle + by;
        return loss();
    };
    const double near = moved(step) - moved(-step);
    const double far = moved(2 * step) - moved(-2 * step);
    at = middle;
    return (8 * near - far) / (12 * step);
}

inline std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace mr::ops::testing
