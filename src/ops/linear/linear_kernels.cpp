// Compiled once per instruction path. This file
// has the common parts; the loops are in PATH.inl.
#include "ops/linear/linear_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 reports its own _mm512_undefined_epi32() as uninitialised wherever it is inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace mr::ops::MR_ISA {
namespace {

[[maybe_unused]] inline std::uint32_t float_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}

[[maybe_unused]] inline float bits_float(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

[[maybe_unused]] inline std::uint16_t load_u16(const unsigned char* p) {
    return static_cast<std::uint16_t>(p[0] | (p[1] << 8));
}

// As f16_to_f32 of core/half.h, which kernels must not include (core/isa_dispatch.h says why).
[[maybe_unused]] inline float f16_value(std::uint32_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) return bits_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        return bits_float(sign | float_bits(static_cast<float>(mantissa) * 0x1p-24f));
    }
    return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Element i of a row of float weights.
[[maybe_unused]] inline float float_weight(WeightKind kind, const unsigned char* row,
                                           std::int64_t i) {
    if (kind == WeightKind::f32) {
        float value;
        __builtin_memcpy(&value, row + i * 4, 4);
        return value;
    }
    const std::uint32_t bits = load_u16(row + i * 2);
    return kind == WeightKind::bf16 ? bits_float(bits << 16) : f16_value(bits);
}

// The scale of an activation block whose largest magnitude has the bits `top`.
struct QuantScale {
    float d;        // see linear_kernels.h
    float inverse;  // 1 / d, or 0 if the block counts as zeros
};

[[maybe_unused]] inline QuantScale quant_scale(std::uint32_t top) {
    if (top >= float_bits(0x1p100f)) return {bits_float(0x7fc00000u), 0.0f};
    const float exact = bits_float(top) / 127.0f;
    if (exact < 0x1p-126f) return {0.0f, 0.0f};
    const float d = bits_float((float_bits(exact) + 2u) & ~3u);
    return {d, 1.0f / d};
}

[[maybe_unused]] inline std::int8_t quantised(float x, QuantScale scale) {
    if (scale.inverse == 0) return 0;
    constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, ties to even
    const float rounded = x * scale.inverse + kRound;
    return static_cast<std::int8_t>(static_cast<std::int32_t>(float_bits(rounded)) -
                                    static_cast<std::int32_t>(float_bits(kRound)));
}

[[maybe_unused]] inline void store(const LinearJob& job, std::int64_t token, std::int64_t row,
                                   float value) {
    const std::int64_t at = token * job.n + row;
    if (job.bias) value += job.bias[row];
    if (job.residual) value += job.residual[at];
    job.out[at] = value;
}

// Outputs [row, row + min(valid, 4)) of one token.
[[maybe_unused]] inline void store_four(const LinearJob& job, std::int64_t token, std::int64_t row,
                                        std::int64_t valid, const float* sums) {
    if (valid < 4) {
        for (std::int64_t i = 0; i < valid; ++i) store(job, token, row + i, sums[i]);
        return;
    }
    const std::int64_t at = token * job.n + row;
    float v[4];
    for (int i = 0; i < 4; ++i) v[i] = sums[i];
    if (job.bias) {
        for (int i = 0; i < 4; ++i) v[i] += job.bias[row + i];
    }
    if (job.residual) {
        for (int i = 0; i < 4; ++i) v[i] += job.residual[at + i];
    }
    for (int i = 0; i < 4; ++i) job.out[at + i] = v[i];
}

}  // namespace

#if defined(MR_ISA_portable)
#include "ops/linear/portable.inl"
#else
#include "ops/linear/blocks.inl"
#if defined(__aarch64__)
#include "ops/linear/neon.inl"
#if defined(MR_ISA_neon_i8mm)
#include "ops/linear/neon_few.inl"
#endif
#else
#include "ops/linear/x86.inl"
#endif
#include "ops/linear/float_tiles.inl"
#include "ops/linear/quant_tiles.inl"
#endif

}  // namespace mr::ops::MR_ISA
