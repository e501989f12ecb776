// The kernel of the measurement: a given number of multiply-adds.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/cuda/device.h"
#include "core/cuda/timeline.h"

namespace mr::streams {

// Up and down in turn, so that values stay near their start and distinct ones stay distinct.
inline constexpr float kUp = 1.0f + 0x1p-10f, kDown = 1.0f - 0x1p-10f, kStep = 0x1p-12f;

// The kernel's result for a value, computed on the host: the same bits, because a fused
// multiply-add rounds once on both.
inline float worked(float x, int iterations) {
    for (int i = 0; i < iterations; ++i) {
        x = std::fma(x, kUp, kStep);
        x = std::fma(x, kDown, -kStep);
    }
    return x;
}

// x[i] = worked(x[i]) for `count` floats on the device; `stamp`: when it ran, null for none.
void launch_work(const cuda::Stream& stream, float* x, std::size_t count, int iterations,
                 cuda::Stamp* stamp);
// `times` such kernels as one: their blocks, without a result. It fills the device for long while
// its blocks stay short.
void launch_busy(const cuda::Stream& stream, float* x, std::size_t count, int iterations, int times,
                 cuda::Stamp* stamp);
// Stamps the device's clock.
void launch_clock(const cuda::Stream& stream, cuda::Stamp* stamp);

}  // namespace mr::streams
