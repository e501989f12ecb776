// The kernel of the measurement: multiply-adds, as many as are asked for.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/cuda/device.h"
#include "core/cuda/timeline.h"

namespace mr::streams {

// Up and down in turn, so that values stay near where they began and different ones stay different.
inline constexpr float kUp = 1.0f + 0x1p-10f, kDown = 1.0f - 0x1p-10f, kStep = 0x1p-12f;

// What the kernel makes of a value, computed on the host: the same bits, because a fused
// multiply-add rounds once, here and there.
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
// `times` such kernels as one: their blocks, and no result. It fills the device for long while its
// blocks stay short.
void launch_busy(const cuda::Stream& stream, float* x, std::size_t count, int iterations, int times,
                 cuda::Stamp* stamp);
// Stamps the device's clock.
void launch_clock(const cuda::Stream& stream, cuda::Stamp* stamp);

}  // namespace mr::streams
