// AdamW over all parameters at once: parameters, gradients and moments are flat buffers.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace mr::ops {

struct AdamW {
    float lr = 1e-3f;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.1f;  // decoupled: p -= lr * weight_decay * p
    float clip = 0;             // > 0: gradients with a larger norm are scaled to this one
    std::int64_t step = 1;      // from 1; used for bias correction of the moments
    // The first `decayed` parameters are bf16 with stochastic rounding, so that steps smaller than
    // their last bit are not lost on average. The random numbers are a function of seed, step and
    // element: the same every time, wherever they are computed.
    bool bf16_masters = false;
    std::uint64_t seed = 0;
    // The index of the first parameter among all, if a step gets only a part of them: a multiple of
    // 4.
    std::int64_t first = 0;

    // For elements 4 * four to 4 * four + 3 of the step's parameters.
    constexpr std::array<std::uint32_t, 4> draws(std::int64_t four) const {
        constexpr std::uint64_t kStream = std::uint64_t{0xBF16} << 40;
        return philox(seed, static_cast<std::uint64_t>(first / 4 + four),
                      kStream + static_cast<std::uint64_t>(step));
    }
};

// Stochastic rounding to one of the two bf16 next to `value`, the nearer one more likely, so that
// the mean is `value` (to 1/65,536 of their distance). `draw`: its 16 low bits are used.
constexpr std::uint16_t stochastic_bf16(float value, std::uint32_t draw) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return static_cast<std::uint16_t>((finite ? bits + (draw & 0xffffu) : bits) >> 16);
}

// A gradient's norm is computed from sums of squares of fixed blocks, added in order. So it has the
// same bits wherever a block is computed.
//
// squares[i] = the sum of squares of elements [cuts[i], cuts[i + 1]) of x, f32 flat, in f64.
void block_squares(const Context& ctx, std::span<double> squares, Tensor x,
                   std::span<const std::int64_t> cuts);
// to[i] = a[i] + b[i], f32; `to` may be either.
void sum_of(const Context& ctx, Tensor to, Tensor a, Tensor b);

// One step. params, grads, m, v f32 [count] flat. The first `decayed` elements have weight decay,
// the rest have none. *grad_square_sum is the sum of squares of all gradients, read when the op
// runs; if it is not finite, nothing is changed (the step is skipped).
//   g = grads * min(1, clip / norm);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²
//   p -= lr * (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay * p)
// With bf16_masters the first `decayed` are then rounded by stochastic_bf16(); they stay f32 here.
void adamw(const Context& ctx, const AdamW& with, Tensor params, Tensor grads, Tensor m, Tensor v,
           std::int64_t decayed, const double* grad_square_sum);

}  // namespace mr::ops
