// One vector of floats in the widest form of the instruction path a kernel file is compiled for.
// Only *_kernels.cpp include this. Everything lies in that path's own namespace (see dispatch.h),
// and no standard function is used, so that nothing inline is shared between paths.
//
// The results of a kernel depend on the path (lanes, fused or unfused products), never on the
// data's alignment or on the number of leftover elements: a partial load is filled with zeros.
#pragma once

#include <cstdint>

#if defined(MR_ISA_neon_dot) || defined(MR_ISA_neon_i8mm)
#include <arm_neon.h>
#define MR_VEC_NEON 1
#elif defined(MR_ISA_avx2)
#include <immintrin.h>
#define MR_VEC_AVX2 1
#elif defined(MR_ISA_avx512)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 and 13 warn of their own _mm512_undefined_ps() once it is inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#define MR_VEC_AVX512 1
#endif

#define MR_INLINE inline __attribute__((always_inline))

namespace mr::ops::MR_ISA {

// f16 bits to f32, exact (as core/half.h, which kernel files may not include).
MR_INLINE float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) {
        return __builtin_bit_cast(float, sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, magnitude));
    }
    return __builtin_bit_cast(float, sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

#if defined(MR_VEC_NEON)

inline constexpr int kLanes = 4;
struct Vec {
    float32x4_t v;
};
MR_INLINE Vec set(float x) { return {vdupq_n_f32(x)}; }
MR_INLINE Vec load(const float* p) { return {vld1q_f32(p)}; }
MR_INLINE void store(float* p, Vec a) { vst1q_f32(p, a.v); }
// The first n lanes (0 < n < kLanes), zeros above.
MR_INLINE Vec load_part(const float* p, int n) {
    float32x4_t v = vdupq_n_f32(0);
    v = vld1q_lane_f32(p, v, 0);
    if (n > 1) v = vld1q_lane_f32(p + 1, v, 1);
    if (n > 2) v = vld1q_lane_f32(p + 2, v, 2);
    return {v};
}
MR_INLINE void store_part(float* p, Vec a, int n) {
    vst1q_lane_f32(p, a.v, 0);
    if (n > 1) vst1q_lane_f32(p + 1, a.v, 1);
    if (n > 2) vst1q_lane_f32(p + 2, a.v, 2);
}
MR_INLINE Vec load(const std::uint16_t* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
}
MR_INLINE Vec load_part(const std::uint16_t* p, int n) {
    uint16x4_t v = vdup_n_u16(0);
    v = vld1_lane_u16(p, v, 0);
    if (n > 1) v = vld1_lane_u16(p + 1, v, 1);
    if (n > 2) v = vld1_lane_u16(p + 2, v, 2);
    return {vcvt_f32_f16(vreinterpret_f16_u16(v))};
}
MR_INLINE Vec add(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
MR_INLINE Vec sub(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
MR_INLINE Vec mul(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
MR_INLINE Vec div(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
// a * b + c, fused where the path has it.
MR_INLINE Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// NaN if b is NaN.
MR_INLINE Vec max(Vec a, Vec b) { return {vmaxq_f32(a.v, b.v)}; }
MR_INLINE Vec min(Vec a, Vec b) { return {vminq_f32(a.v, b.v)}; }
MR_INLINE Vec abs(Vec a) { return {vabsq_f32(a.v)}; }
// x < 0 ? a : b, lane by lane.
MR_INLINE Vec where_negative(Vec x, Vec a, Vec b) { return {vbslq_f32(vcltzq_f32(x.v), a.v, b.v)}; }
MR_INLINE float sum(Vec a) {
    const float32x2_t pair = vpadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
    return vget_lane_f32(vpadd_f32(pair, pair), 0);
}
// The sums of four vectors, each by the same tree as sum().
MR_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(a.v, b.v), vpaddq_f32(c.v, d.v)));
}
MR_INLINE float max_of(Vec a) { return vmaxvq_f32(a.v); }
// a * 2^n, where n_bits holds the integer n in the low bits of a float made by adding kMagic.
MR_INLINE Vec scale_by_exponent(Vec a, Vec n_bits) {
    const int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(n_bits.v), vdupq_n_s32(0x4b400000));
    const int32x4_t n1 = vshrq_n_s32(n, 1);
    const int32x4_t n2 = vsubq_s32(n, n1);
    const int32x4_t bias = vdupq_n_s32(127);
    const float32x4_t s1 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n1, bias), 23));
    const float32x4_t s2 = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n2, bias), 23));
    return {vmulq_f32(vmulq_f32(a.v, s1), s2)};
}

#elif defined(MR_VEC_AVX2)

inline constexpr int kLanes = 8;
struct Vec {
    __m256 v;
};
MR_INLINE Vec set(float x) { return {_mm256_set1_ps(x)}; }
MR_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
MR_INLINE void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
MR_INLINE __m256i part_mask(int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}
// The first n lanes (0 < n < kLanes), zeros above.
MR_INLINE Vec load_part(const float* p, int n) { return {_mm256_maskload_ps(p, part_mask(n))}; }
MR_INLINE void store_part(float* p, Vec a, int n) { _mm256_maskstore_ps(p, part_mask(n), a.v); }
MR_INLINE Vec load(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
MR_INLINE Vec load_part(const std::uint16_t* p, int n) {
    alignas(16) std::uint16_t part[8] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return {_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(part)))};
}
MR_INLINE Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
MR_INLINE Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
MR_INLINE Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
MR_INLINE Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
MR_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
MR_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
MR_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
MR_INLINE Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
MR_INLINE Vec where_negative(Vec x, Vec a, Vec b) {
    const __m256 negative = _mm256_cmp_ps(x.v, _mm256_setzero_ps(), _CMP_LT_OQ);
    return {_mm256_blendv_ps(b.v, a.v, negative)};
}
MR_INLINE float sum(Vec a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 pair = _mm_hadd_ps(half, half);
    return _mm_cvtss_f32(_mm_hadd_ps(pair, pair));
}
MR_INLINE __m128 halves(Vec a) {
    return _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
}
MR_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    _mm_storeu_ps(
        out, _mm_hadd_ps(_mm_hadd_ps(halves(a), halves(b)), _mm_hadd_ps(halves(c), halves(d))));
}
MR_INLINE float max_of(Vec a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
MR_INLINE Vec scale_by_exponent(Vec a, Vec n_bits) {
    const __m256i n =
        _mm256_sub_epi32(_mm256_castps_si256(n_bits.v), _mm256_set1_epi32(0x4b400000));
    const __m256i n1 = _mm256_srai_epi32(n, 1);
    const __m256i n2 = _mm256_sub_epi32(n, n1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n1, bias), 23));
    const __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n2, bias), 23));
    return {_mm256_mul_ps(_mm256_mul_ps(a.v, s1), s2)};
}

#elif defined(MR_VEC_AVX512)

inline constexpr int kLanes = 16;
struct Vec {
    __m512 v;
};
MR_INLINE Vec set(float x) { return {_mm512_set1_ps(x)}; }
MR_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
MR_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
MR_INLINE __mmask16 part_mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n lanes (0 < n < kLanes), zeros above.
MR_INLINE Vec load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(part_mask(n), p)}; }
MR_INLINE void store_part(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, part_mask(n), a.v); }
MR_INLINE Vec load(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
MR_INLINE Vec load_part(const std::uint16_t* p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part_mask(n), p))};
}
MR_INLINE Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
MR_INLINE Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
MR_INLINE Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
MR_INLINE Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
MR_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
MR_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
MR_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
MR_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
MR_INLINE Vec where_negative(Vec x, Vec a, Vec b) {
    const __mmask16 negative = _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ);
    return {_mm512_mask_blend_ps(negative, b.v, a.v)};
}
MR_INLINE __m128 quarters(Vec a) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
MR_INLINE float sum(Vec a) {
    const __m128 quarter = quarters(a);
    const __m128 pair = _mm_hadd_ps(quarter, quarter);
    return _mm_cvtss_f32(_mm_hadd_ps(pair, pair));
}
MR_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    _mm_storeu_ps(out, _mm_hadd_ps(_mm_hadd_ps(quarters(a), quarters(b)),
                                   _mm_hadd_ps(quarters(c), quarters(d))));
}
MR_INLINE float max_of(Vec a) { return _mm512_reduce_max_ps(a.v); }
MR_INLINE Vec scale_by_exponent(Vec a, Vec n_bits) {
    const __m512i n =
        _mm512_sub_epi32(_mm512_castps_si512(n_bits.v), _mm512_set1_epi32(0x4b400000));
    const __m512i n1 = _mm512_srai_epi32(n, 1);
    const __m512i n2 = _mm512_sub_epi32(n, n1);
    const __m512i bias = _mm512_set1_epi32(127);
    const __m512 s1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n1, bias), 23));
    const __m512 s2 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n2, bias), 23));
    return {_mm512_mul_ps(_mm512_mul_ps(a.v, s1), s2)};
}

#else  // portable

inline constexpr int kLanes = 4;
struct Vec {
    float v[4];
};
template <typename Function>
MR_INLINE Vec each(Function f) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
}
MR_INLINE Vec set(float x) { return {{x, x, x, x}}; }
MR_INLINE Vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
MR_INLINE void store(float* p, Vec a) {
    for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
// The first n lanes (0 < n < kLanes), zeros above.
MR_INLINE Vec load_part(const float* p, int n) {
    return each([=](int i) { return i < n ? p[i] : 0.0f; });
}
MR_INLINE void store_part(float* p, Vec a, int n) {
    for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
MR_INLINE Vec load(const std::uint16_t* p) {
    return each([=](int i) { return half_to_float(p[i]); });
}
MR_INLINE Vec load_part(const std::uint16_t* p, int n) {
    return each([=](int i) { return i < n ? half_to_float(p[i]) : 0.0f; });
}
MR_INLINE Vec add(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] + b.v[i]; });
}
MR_INLINE Vec sub(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] - b.v[i]; });
}
MR_INLINE Vec mul(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] * b.v[i]; });
}
MR_INLINE Vec div(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] / b.v[i]; });
}
MR_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return each([=](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
MR_INLINE Vec max(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
MR_INLINE Vec min(Vec a, Vec b) {
    return each([=](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
MR_INLINE Vec abs(Vec a) {
    return each([=](int i) { return __builtin_fabsf(a.v[i]); });
}
MR_INLINE Vec where_negative(Vec x, Vec a, Vec b) {
    return each([=](int i) { return x.v[i] < 0 ? a.v[i] : b.v[i]; });
}
MR_INLINE float sum(Vec a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
MR_INLINE void sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
}
MR_INLINE float max_of(Vec a) {
    float out = a.v[0];
    for (int i = 1; i < kLanes; ++i) out = out > a.v[i] ? out : a.v[i];
    return out;
}
MR_INLINE Vec scale_by_exponent(Vec a, Vec n_bits) {
    return each([=](int i) {
        // Unsigned, because it may be the bits of a NaN.
        const std::uint32_t n = __builtin_bit_cast(std::uint32_t, n_bits.v[i]) - 0x4b400000u;
        const std::uint32_t n1 = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
        const float s1 = __builtin_bit_cast(float, (n1 + 127u) << 23);
        const float s2 = __builtin_bit_cast(float, (n - n1 + 127u) << 23);
        return a.v[i] * s1 * s2;
    });
}

#endif

// Common to all paths from here on.

MR_INLINE Vec load_n(const float* p, int n) { return n >= kLanes ? load(p) : load_part(p, n); }
MR_INLINE void store_n(float* p, Vec a, int n) {
    if (n >= kLanes) {
        store(p, a);
    } else {
        store_part(p, a, n);
    }
}

// Transposes 4 x 4 floats: to[p * width + i] = from[i * stride + p].
MR_INLINE void transpose4(float* to, std::int64_t width, const float* from, std::int64_t stride) {
#if defined(MR_VEC_NEON)
    const float32x4_t r0 = vld1q_f32(from), r1 = vld1q_f32(from + stride);
    const float32x4_t r2 = vld1q_f32(from + 2 * stride), r3 = vld1q_f32(from + 3 * stride);
    const float32x4_t a = vzip1q_f32(r0, r2), b = vzip2q_f32(r0, r2);
    const float32x4_t c = vzip1q_f32(r1, r3), d = vzip2q_f32(r1, r3);
    vst1q_f32(to, vzip1q_f32(a, c));
    vst1q_f32(to + width, vzip2q_f32(a, c));
    vst1q_f32(to + 2 * width, vzip1q_f32(b, d));
    vst1q_f32(to + 3 * width, vzip2q_f32(b, d));
#elif defined(MR_VEC_AVX2) || defined(MR_VEC_AVX512)
    const __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + stride);
    const __m128 r2 = _mm_loadu_ps(from + 2 * stride), r3 = _mm_loadu_ps(from + 3 * stride);
    const __m128 a = _mm_unpacklo_ps(r0, r2), b = _mm_unpackhi_ps(r0, r2);
    const __m128 c = _mm_unpacklo_ps(r1, r3), d = _mm_unpackhi_ps(r1, r3);
    _mm_storeu_ps(to, _mm_unpacklo_ps(a, c));
    _mm_storeu_ps(to + width, _mm_unpackhi_ps(a, c));
    _mm_storeu_ps(to + 2 * width, _mm_unpacklo_ps(b, d));
    _mm_storeu_ps(to + 3 * width, _mm_unpackhi_ps(b, d));
#else
    for (int i = 0; i < 4; ++i) {
        for (int p = 0; p < 4; ++p) to[p * width + i] = from[i * stride + p];
    }
#endif
}

// e^x to about 1 ulp; 0 below the smallest subnormal, infinity above the largest float, NaN for
// NaN. x = n ln2 + r, |r| <= ln2 / 2 (Cody and Waite: ln2 in two parts, the first exact for small
// n); e^r by Taylor to r^7, whose first left-out term is below 6e-9; then * 2^n in two steps, so
// that subnormal results round once.
MR_INLINE Vec exp(Vec x) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    x = max(set(-104.0f), x);
    x = min(set(88.8f), x);
    const Vec n_bits = add(mul(x, set(1.44269504f)), set(kMagic));
    const Vec n = sub(n_bits, set(kMagic));
    Vec r = fma(n, set(-0.693359375f), x);        // 355 / 512
    r = fma(n, set(2.12194440054690583e-4f), r);  // the rest of ln2
    Vec p = set(1.0f / 5040);
    p = fma(p, r, set(1.0f / 720));
    p = fma(p, r, set(1.0f / 120));
    p = fma(p, r, set(1.0f / 24));
    p = fma(p, r, set(1.0f / 6));
    p = fma(p, r, set(0.5f));
    p = add(set(1.0f), fma(mul(r, r), p, r));
    return scale_by_exponent(p, n_bits);
}

}  // namespace mr::ops::MR_ISA
