#pragma once

namespace mr::ops {

enum class NormKind {
    rms,    // x / sqrt(mean(x²) + eps) * weight
    layer,  // (x - mean) / sqrt(var + eps) * weight + bias
};

}  // namespace mr::ops
