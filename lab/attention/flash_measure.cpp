// Shapes, and the stand-in for flash_measure.cu in a build without CUDA.
#include "lab/attention/flash_measure.h"

#include <algorithm>
#include <numeric>

#include "core/cuda/device.h"

namespace mr::cuda {

int FlashShape::longest() const {
    return lengths.empty() ? tokens : *std::max_element(lengths.begin(), lengths.end());
}

std::int64_t FlashShape::all_tokens() const {
    if (lengths.empty()) return std::int64_t{batch} * tokens;
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

double FlashShape::forward_flops() const {
    using Kind = ops::AttentionMask::Kind;
    const auto pairs = [&](int length) {
        const double all = 1.0 * length * length;
        if (mask.window == 0 && mask.kind == Kind::full) return all;
        if (mask.window == 0 && mask.kind == Kind::causal) return all / 2;
        double seen = 0;
        for (int i = 0; i < length; ++i) seen += ops::visible_keys(mask, i, length).count();
        return seen;
    };
    double sum = lengths.empty() ? batch * pairs(tokens) : 0;
    for (const int length : lengths) sum += pairs(length);
    return 4.0 * heads * head_dim * sum;
}

#ifndef MR_CUDA
FlashMeasured measure_flash(const FlashShape&, bool, bool, const std::function<void()>&) {
    require_device();  // throws: there is no GPU
    return {};
}

FlashMeasured measure_unfused(const FlashShape&, bool) {
    require_device();
    return {};
}
#endif

}  // namespace mr::cuda
