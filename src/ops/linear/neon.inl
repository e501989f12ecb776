// Arm NEON: sdot, and smmla for many tokens where the path has it.

namespace {

// --- floats ---

using Vec = float32x4_t;
constexpr int kLanes = 4;
constexpr int kTileTokens = 6;  // 24 accumulators of 32 registers, 4 rows, 1 token

inline Vec zero() { return vdupq_n_f32(0); }
inline Vec fused(Vec acc, Vec a, Vec b) { return vfmaq_f32(acc, a, b); }
inline void store_vec(float* to, Vec v) { vst1q_f32(to, v); }

template <WeightKind Kind>
inline Vec load(const void* p) {
    const auto* bytes = static_cast<const std::uint8_t*>(p);
    if constexpr (Kind == WeightKind::f32) {
        return vreinterpretq_f32_u8(vld1q_u8(bytes));
    } else if constexpr (Kind == WeightKind::f16) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes)));
    } else {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes)), 16));
    }
}

inline void sums_of_four(const Vec* v, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}

// --- quantised, one token ---

// The scales of 4 rows at byte `at`. Gathered in a general register: the vector pipes are busy.
inline float32x4_t scales_of_four(const unsigned char* const* rows, std::size_t at) {
    std::uint16_t h[4];
    for (int r = 0; r < 4; ++r) __builtin_memcpy(&h[r], rows[r] + at, 2);
    const std::uint64_t bits = h[0] | static_cast<std::uint64_t>(h[1]) << 16 |
                               static_cast<std::uint64_t>(h[2]) << 32 |
                               static_cast<std::uint64_t>(h[3]) << 48;
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits)));
}

template <bool Q8>
inline void gemv_four(const unsigned char* const* rows, std::int64_t blocks, const TokenBlock* x,
                      float* sums) {
    constexpr std::size_t kBytes = Q8 ? 34 : 18;
    const unsigned char* const row[4] = {rows[0], rows[1], rows[2], rows[3]};
    float32x4_t acc = vdupq_n_f32(0);
    std::size_t at = 0;
    for (std::int64_t b = 0; b < blocks; ++b, at += kBytes, ++x) {
        const int8x16_t x0 = vld1q_s8(x->q), x1 = vld1q_s8(x->q + 16);
        int32x4_t dot[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            int8x16_t w0, w1;
            if constexpr (Q8) {
                const auto* q = reinterpret_cast<const std::int8_t*>(row[r] + at + 2);
                w0 = vld1q_s8(q);
                w1 = vld1q_s8(q + 16);
            } else {
                const uint8x16_t q = vld1q_u8(row[r] + at + 2);
                w0 = vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15)));
                w1 = vreinterpretq_s8_u8(vshrq_n_u8(q, 4));
            }
            dot[r] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), w0, x0), w1, x1);
        }
        const int32x4_t isum = vpaddq_s32(vpaddq_s32(dot[0], dot[1]), vpaddq_s32(dot[2], dot[3]));
        const int32x4_t start = vld1q_s32(Q8 ? x->start : x->start4);
        const float32x4_t sum = vreinterpretq_f32_s32(vaddq_s32(isum, start));
        const float32x4_t scaled = vfmaq_f32(vld1q_f32(x->minus), sum, vld1q_f32(x->d));
        acc = vfmaq_f32(acc, scaled, scales_of_four(row, at));
    }
    vst1q_f32(sums, acc);
}

// --- quantised, many tokens ---

template <bool Q8>
inline void pack_four(const unsigned char* const* rows, std::int64_t blocks, FourBlock* to) {
    constexpr std::size_t kBytes = Q8 ? 34 : 18;
    std::size_t at = 0;
    for (std::int64_t b = 0; b < blocks; ++b, at += kBytes, ++to) {
        int8x16_t w[4][2];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            if constexpr (Q8) {
                const auto* q = reinterpret_cast<const std::int8_t*>(rows[r] + at + 2);
                w[r][0] = vld1q_s8(q);
                w[r][1] = vld1q_s8(q + 16);
            } else {
                const uint8x16_t q = vld1q_u8(rows[r] + at + 2);
                const int8x16_t eight = vdupq_n_s8(8);
                w[r][0] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15))), eight);
                w[r][1] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(q, 4)), eight);
            }
        }
        if constexpr (kRun == 4) {  // rows one after the other
            for (int r = 0; r < 4; ++r) {
                vst1q_s8(to->q + r * 32, w[r][0]);
                vst1q_s8(to->q + r * 32 + 16, w[r][1]);
            }
        } else {  // 8 elements of 4 rows, then the next 8
            for (int h = 0; h < 2; ++h) {
                for (int p = 0; p < 2; ++p) {
                    const int64x2_t even = vreinterpretq_s64_s8(w[2 * p][h]);
                    const int64x2_t odd = vreinterpretq_s64_s8(w[2 * p + 1][h]);
                    std::int8_t* q = to->q + h * 64 + p * 16;
                    vst1q_s8(q, vreinterpretq_s8_s64(vzip1q_s64(even, odd)));
                    vst1q_s8(q + 32, vreinterpretq_s8_s64(vzip2q_s64(even, odd)));
                }
            }
        }
        vst1q_f32(to->scale, scales_of_four(rows, at));
    }
}

// A register with what is at p, by a load of its own: the load pipes have room, and a copy of a
// register would take a slot of the pipes that the products need.
template <typename T, typename V>
inline V fresh(const T* p) {
    V v;
    asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const T(*)[4]>(p)));
    return v;
}

alignas(16) constexpr std::int32_t kStart[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};

// acc[r][c]: row r, the 4 tokens of group c.
template <int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     float32x4_t (&acc)[4][C]);

#if defined(MR_ISA_neon_dot)

constexpr int kTileGroups = 2;  // 8 integer and 8 float accumulators, 4 rows, 2 groups

template <int J, int C>
inline void dot_lane(int32x4_t (&sum)[4][C], const int8x16_t (&w)[4], const GroupBlock* const* x,
                     int at) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
        const int8x16_t v = vld1q_s8(x[c]->q + at + J * 16);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) sum[r][c] = vdotq_laneq_s32(sum[r][c], v, w[r], J);
    }
}

template <int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     float32x4_t (&acc)[4][C]) {
    const GroupBlock* x[C];
    for (int c = 0; c < C; ++c) x[c] = groups[c];
    for (std::int64_t b = 0; b < blocks; ++b, ++w) {
        int32x4_t sum[4][C];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) sum[r][c] = fresh<std::int32_t, int32x4_t>(kStart);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            int8x16_t v[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) v[r] = vld1q_s8(w->q + r * 32 + h * 16);
            dot_lane<0>(sum, v, x, h * 64);
            dot_lane<1>(sum, v, x, h * 64);
            dot_lane<2>(sum, v, x, h * 64);
            dot_lane<3>(sum, v, x, h * 64);
        }
        const float32x4_t scale = vld1q_f32(w->scale);
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            const float32x4_t d = vld1q_f32(x[c]->d);
            float32x4_t t[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                t[r] = vfmaq_f32(fresh<float, float32x4_t>(x[c]->minus),
                                 vreinterpretq_f32_s32(sum[r][c]), d);
            }
            acc[0][c] = vfmaq_laneq_f32(acc[0][c], t[0], scale, 0);
            acc[1][c] = vfmaq_laneq_f32(acc[1][c], t[1], scale, 1);
            acc[2][c] = vfmaq_laneq_f32(acc[2][c], t[2], scale, 2);
            acc[3][c] = vfmaq_laneq_f32(acc[3][c], t[3], scale, 3);
            ++x[c];
        }
    }
}

#else

constexpr int kTileGroups = 2;

// smmla gives 2 rows times 2 tokens: {r0 t0, r0 t1, r1 t0, r1 t1}.
template <int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     float32x4_t (&out)[4][C]) {
    float32x4_t acc[2][2 * C];  // rows {0,1} and {2,3}; tokens by twos
    for (int p = 0; p < 2; ++p) {
        for (int c = 0; c < 2 * C; ++c) acc[p][c] = vdupq_n_f32(0);
    }
    for (std::int64_t b = 0; b < blocks; ++b, ++w) {
        int32x4_t sum[2][2 * C];
#pragma GCC unroll 2
        for (int p = 0; p < 2; ++p) {
#pragma GCC unroll 4
            for (int c = 0; c < 2 * C; ++c) sum[p][c] = fresh<std::int32_t, int32x4_t>(kStart);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const int8x16_t w0 = vld1q_s8(w->q + i * 32), w1 = vld1q_s8(w->q + i * 32 + 16);
#pragma GCC unroll 4
            for (int c = 0; c < 2 * C; ++c) {
                const int8x16_t v = vld1q_s8(groups[c / 2][b].q + i * 32 + c % 2 * 16);
                sum[0][c] = vmmlaq_s32(sum[0][c], w0, v);
                sum[1][c] = vmmlaq_s32(sum[1][c], w1, v);
            }
        }
        const float32x4_t scale = vld1q_f32(w->scale);
        const float32x4_t scale01 = vzip1q_f32(scale, scale), scale23 = vzip2q_f32(scale, scale);
#pragma GCC unroll 4
        for (int c = 0; c < 2 * C; ++c) {
            const float32x2_t d2 = vld1_f32(groups[c / 2][b].d + c % 2 * 2);
            const float32x2_t minus2 = vld1_f32(groups[c / 2][b].minus + c % 2 * 2);
            const float32x4_t d = vcombine_f32(d2, d2), minus = vcombine_f32(minus2, minus2);
            const float32x4_t t0 = vfmaq_f32(minus, vreinterpretq_f32_s32(sum[0][c]), d);
            const float32x4_t t1 = vfmaq_f32(minus, vreinterpretq_f32_s32(sum[1][c]), d);
            acc[0][c] = vfmaq_f32(acc[0][c], t0, scale01);
            acc[1][c] = vfmaq_f32(acc[1][c], t1, scale23);
        }
    }
    for (int p = 0; p < 2; ++p) {
        for (int c = 0; c < C; ++c) {
            const float64x2_t a = vreinterpretq_f64_f32(acc[p][2 * c]);
            const float64x2_t z = vreinterpretq_f64_f32(acc[p][2 * c + 1]);
            out[2 * p][c] = vreinterpretq_f32_f64(vzip1q_f64(a, z));
            out[2 * p + 1][c] = vreinterpretq_f32_f64(vzip2q_f64(a, z));
        }
    }
}

#endif

// Rows [row, row + min(valid, 4)) times the tokens from `token` on, `tokens` of them and at most C
// groups; x is the first group, the next lies `blocks` further.
template <bool Q8, int C>
inline void gemm_four(const LinearJob& job, const FourBlock* w, std::int64_t blocks,
                      const GroupBlock* x, std::int64_t token, std::int64_t tokens,
                      std::int64_t row, std::int64_t valid) {
    const GroupBlock* groups[C];
    float32x4_t acc[4][C];
    for (int c = 0; c < C; ++c) {
        groups[c] = x + c * blocks;
        for (int r = 0; r < 4; ++r) acc[r][c] = vdupq_n_f32(0);
    }
    gemm_acc<C>(w, blocks, groups, acc);
    for (int c = 0; c < C; ++c) {  // from tokens of a row to rows of a token
        const float32x4_t a = vzip1q_f32(acc[0][c], acc[2][c]);
        const float32x4_t b = vzip2q_f32(acc[0][c], acc[2][c]);
        const float32x4_t p = vzip1q_f32(acc[1][c], acc[3][c]);
        const float32x4_t q = vzip2q_f32(acc[1][c], acc[3][c]);
        const float32x4_t by_token[4] = {vzip1q_f32(a, p), vzip2q_f32(a, p), vzip1q_f32(b, q),
                                         vzip2q_f32(b, q)};
        for (int t = 0; t < 4 && c * 4 + t < tokens; ++t) {
            float sums[4];
            vst1q_f32(sums, by_token[t]);
            store_four(job, token + c * 4 + t, row, valid, sums);
        }
    }
}

}  // namespace
