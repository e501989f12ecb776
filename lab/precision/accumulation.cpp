#include "lab/precision/accumulation.h"

#include <cmath>

#include "core/error.h"
#include "core/half.h"
#include "core/philox.h"
#include "ops/optimizer/adamw.h"

namespace mr::precision {
namespace {

float to_nearest(Format format, float value) {
    switch (format) {
        case Format::f32:
            return value;
        case Format::f16:
            return f16_to_f32(f32_to_f16(value));
        case Format::bf16:
            return bf16_to_f32(f32_to_bf16(value));
    }
    return value;
}

}  // namespace

Accumulated accumulate(const Accumulation& what, double value, std::int64_t times,
                       std::uint64_t seed) {
    const bool stochastic = what.rounding == Rounding::stochastic;
    MR_CHECK(!stochastic || what.sum == Format::bf16, "bf16 alone is rounded stochastically");
    const float addend = to_nearest(what.addend, static_cast<float>(value));
    float sum = 0;
    std::int64_t changed = 0;  // the last addition that changed the sum
    for (std::int64_t i = 0; i < times; ++i) {
        const float exact = sum + addend;
        float next = 0;
        if (stochastic) {
            const auto draw = philox(seed, static_cast<std::uint64_t>(i))[0];
            next = bf16_to_f32(ops::stochastic_bf16(exact, draw));
        } else {
            next = to_nearest(what.sum, exact);
        }
        if (next != sum) changed = i + 1;
        sum = next;
    }
    // With stochastic rounding a sum may stay the same for a while; that is not a stall.
    const bool stalled = !stochastic && changed < times;
    return {addend, sum, stalled ? changed : -1};
}

Spread accumulate_often(const Accumulation& what, double value, std::int64_t times,
                        std::int64_t seeds) {
    MR_CHECK(seeds > 1, "a deviation is of two results at least");
    double sum = 0, squares = 0;
    for (std::int64_t seed = 1; seed <= seeds; ++seed) {
        // Relative to the value, so that the squares stay small.
        const double off = accumulate(what, value, times, static_cast<std::uint64_t>(seed)).result -
                           value * static_cast<double>(times);
        sum += off;
        squares += off * off;
    }
    const auto count = static_cast<double>(seeds);
    const double mean = sum / count;
    return {value * static_cast<double>(times) + mean,
            std::sqrt((squares - count * mean * mean) / (count - 1))};
}

std::vector<Accumulation> accumulation_rows() {
    return {{Format::f32, Format::f32},
            {Format::f16, Format::f16},
            {Format::bf16, Format::bf16},
            {Format::f16, Format::f32},
            {Format::bf16, Format::f32},
            {Format::f32, Format::bf16},
            {Format::f32, Format::bf16, Rounding::stochastic}};
}

}  // namespace mr::precision
