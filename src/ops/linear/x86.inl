// x86: AVX2 with maddubs, AVX-512 with VNNI.
//
// Both paths multiply unsigned weights by signed activations:
//   4 bits, both paths: w + 8 (0..15);   8 bits, AVX-512: w + 128.
// The offset is subtracted again with the block's sum of activations, exactly, before any rounding.
// AVX2's 16-bit sums of two products would overflow for w + 128, so there 8-bit weights are used as
// |w| and their sign is moved to the activation: 2 * 128 * 127 < 2^15.

namespace {

// --- floats ---

#if defined(MR_ISA_avx512)
using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kTileTokens = 6;  // 24 accumulators of 32 registers, 4 rows, 1 token
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec fused(Vec acc, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, acc); }
inline void store_vec(float* to, Vec v) { _mm512_storeu_ps(to, v); }
inline __m256 half_sum(Vec v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
#else
using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kTileTokens = 2;  // 8 accumulators of 16 registers, 4 rows, 1 token
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec fused(Vec acc, Vec a, Vec b) { return _mm256_fmadd_ps(a, b, acc); }
inline void store_vec(float* to, Vec v) { _mm256_storeu_ps(to, v); }
inline __m256 half_sum(Vec v) { return v; }
#endif

template <WeightKind Kind>
inline Vec load(const void* p) {
#if defined(MR_ISA_avx512)
    if constexpr (Kind == WeightKind::f32) {
        return _mm512_loadu_ps(p);
    } else {
        const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
        if constexpr (Kind == WeightKind::f16) return _mm512_cvtph_ps(half);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
#else
    if constexpr (Kind == WeightKind::f32) {
        return _mm256_loadu_ps(static_cast<const float*>(p));
    } else {
        const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
        if constexpr (Kind == WeightKind::f16) return _mm256_cvtph_ps(half);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
#endif
}

inline Vec load_here(const float* p, std::int64_t i) { return load<WeightKind::f32>(p + i); }

inline void sums_of_four(const Vec* v, float* out) {
    const __m256 ab = _mm256_hadd_ps(half_sum(v[0]), half_sum(v[1]));
    const __m256 cd = _mm256_hadd_ps(half_sum(v[2]), half_sum(v[3]));
    const __m256 all = _mm256_hadd_ps(ab, cd);  // of each half of 4 lanes
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

// --- quantised, one token ---

inline __m128 scales_of_four(const unsigned char* const* rows, std::size_t at) {
    std::uint16_t h[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) __builtin_memcpy(&h[r], rows[r] + at, 2);
    const std::uint64_t bits = h[0] | static_cast<std::uint64_t>(h[1]) << 16 |
                               static_cast<std::uint64_t>(h[2]) << 32 |
                               static_cast<std::uint64_t>(h[3]) << 48;
    return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(bits)));
}

inline __m256i load_32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// The 32 elements of a 4-bit block, as 0..15 in order.
inline __m256i nibbles(const unsigned char* p) {
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// 8 sums of 4 products of the block.
template <bool Q8>
inline __m256i dot_block(const unsigned char* p, __m256i x) {
#if defined(MR_ISA_avx512)
    const __m256i w = Q8 ? _mm256_xor_si256(load_32(p), _mm256_set1_epi8(-128)) : nibbles(p);
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, x);
#else
    __m256i w, v = x;
    if constexpr (Q8) {
        const __m256i q = load_32(p);
        w = _mm256_abs_epi8(q);  // -128 becomes 128, as unsigned
        v = _mm256_sign_epi8(x, q);
    } else {
        w = nibbles(p);
    }
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, v), _mm256_set1_epi16(1));
#endif
}

template <bool Q8>
inline void gemv_four(const unsigned char* const* rows, std::int64_t blocks, const TokenBlock* x,
                      float* sums) {
    constexpr std::size_t kBytes = Q8 ? 34 : 18;
    const unsigned char* const row[4] = {rows[0], rows[1], rows[2], rows[3]};
    __m128 acc = _mm_setzero_ps();
    std::size_t at = 0;
    for (std::int64_t b = 0; b < blocks; ++b, at += kBytes, ++x) {
        const __m256i v = load_32(x->q);
        __m256i dot[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) dot[r] = dot_block<Q8>(row[r] + at + 2, v);
        const __m256i all =
            _mm256_hadd_epi32(_mm256_hadd_epi32(dot[0], dot[1]), _mm256_hadd_epi32(dot[2], dot[3]));
        const __m128i isum =
            _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        const __m128i start =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(Q8 ? x->start : x->start4));
        const __m128 sum = _mm_castsi128_ps(_mm_add_epi32(isum, start));
        const __m128 scaled = _mm_fmadd_ps(sum, _mm_loadu_ps(x->d), _mm_loadu_ps(x->minus));
        acc = _mm_fmadd_ps(scaled, scales_of_four(row, at), acc);
    }
    _mm_storeu_ps(sums, acc);
}

inline __m128 scales_interleaved(const unsigned char* p) {
    return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// The block's sums of 4 interleaved rows, plus `start`. Each 128 bits of a vector hold 4 columns of
// the 4 rows, so the activations of 4 columns are repeated 4 times.
template <bool Q8>
inline __m128i dot_interleaved(const unsigned char* w, const std::int8_t* x, __m128i start) {
    const __m256i v = load_32(x);
#if defined(MR_ISA_avx512)
    const __m512i columns = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __m512i v2 = _mm512_castsi256_si512(v);
    const __m512i x0 = _mm512_permutexvar_epi32(columns, v2);
    const __m512i x1 =
        _mm512_permutexvar_epi32(_mm512_add_epi32(columns, _mm512_set1_epi32(4)), v2);
    __m512i w0 = _mm512_loadu_si512(w), w1;
    if constexpr (Q8) {
        w0 = _mm512_xor_si512(w0, _mm512_set1_epi8(-128));
        w1 = _mm512_xor_si512(_mm512_loadu_si512(w + 64), _mm512_set1_epi8(-128));
    } else {
        w1 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), _mm512_set1_epi8(15));
        w0 = _mm512_and_si512(w0, _mm512_set1_epi8(15));
    }
    const __m512i sum =
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_zextsi128_si512(start), w0, x0), w1, x1);
    const __m256i half =
        _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
#else
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_zextsi128_si256(start);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // columns [8 i, 8 i + 8)
        const __m256i xi =
            _mm256_permutevar8x32_epi32(v, _mm256_set_epi32(2 * i + 1, 2 * i + 1, 2 * i + 1,
                                                            2 * i + 1, 2 * i, 2 * i, 2 * i, 2 * i));
        __m256i pairs;
        if constexpr (Q8) {
            const __m256i q = load_32(w + i * 32);
            pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(xi, q));
        } else {
            const __m256i q = load_32(w + i % 2 * 32);
            pairs = _mm256_maddubs_epi16(
                _mm256_and_si256(i < 2 ? q : _mm256_srli_epi16(q, 4), _mm256_set1_epi8(15)), xi);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
#endif
}

// 4 rows that linear_repack() interleaved: lanes are rows, and memory is one stream.
template <bool Q8>
inline void gemv_interleaved(const unsigned char* w, std::int64_t blocks, const TokenBlock* x,
                             float* sums) {
    constexpr std::int64_t kQuants = Q8 ? 128 : 64;
    constexpr std::int64_t kAhead = 4096;
    __m128 acc = _mm_setzero_ps();
    for (std::int64_t b = 0; b < blocks; ++b, w += kQuants + 8, ++x) {
        const __m128i start =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(Q8 ? x->start : x->start4));
        const __m128 sum = _mm_castsi128_ps(dot_interleaved<Q8>(w, x->q, start));
        const __m128 scaled = _mm_fmadd_ps(sum, _mm_loadu_ps(x->d), _mm_loadu_ps(x->minus));
        acc = _mm_fmadd_ps(scaled, scales_interleaved(w + kQuants), acc);
        __builtin_prefetch(w + kAhead);
        if constexpr (Q8) __builtin_prefetch(w + kAhead + 64);
    }
    _mm_storeu_ps(sums, acc);
}

// --- quantised, many tokens ---

// to->q: columns 0 to 3 of the 4 rows, then columns 4 to 7, and so on, as interleaved rows have it.
inline void store_transposed(const __m256i (&rows)[4], std::int8_t* to) {
    const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    const __m256i b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]);
    const __m256i d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    const __m256i by_columns[4] = {
        _mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d)};  // columns [4 i, 4 i + 4) and [16 + 4 i, 16 + 4 i + 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        auto* at = reinterpret_cast<__m128i*>(to + i * 16);
        _mm_storeu_si128(at, _mm256_castsi256_si128(by_columns[i]));
        _mm_storeu_si128(at + 4, _mm256_extracti128_si256(by_columns[i], 1));
    }
}

// 8-bit weights as the products take them.
inline __m256i unsigned_on_avx512(__m256i w) {
#if defined(MR_ISA_avx512)
    return _mm256_xor_si256(w, _mm256_set1_epi8(-128));
#else
    return w;
#endif
}

template <bool Q8, bool Interleaved>
inline void pack_four(const unsigned char* const* rows, std::int64_t blocks, FourBlock* to) {
    constexpr std::size_t kBytes = Q8 ? 34 : 18;
    std::size_t at = 0;
    if constexpr (Interleaved) {
        for (std::int64_t b = 0; b < blocks; ++b, at += 4 * kBytes, ++to) {
            const unsigned char* p = rows[0] + at;
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                __m256i w = load_32(p + (Q8 ? i : i % 2) * 32);
                if constexpr (Q8) {
                    w = unsigned_on_avx512(w);
                } else {
                    w = _mm256_and_si256(i < 2 ? w : _mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
                }
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to->q + i * 32), w);
            }
            _mm_storeu_ps(to->scale, scales_interleaved(p + 4 * (kBytes - 2)));
        }
        return;
    }
    for (std::int64_t b = 0; b < blocks; ++b, at += kBytes, ++to) {
        __m256i w[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            const unsigned char* q = rows[r] + at + 2;
            w[r] = Q8 ? unsigned_on_avx512(load_32(q)) : nibbles(q);
        }
        store_transposed(w, to->q);
        _mm_storeu_ps(to->scale, scales_of_four(rows, at));
    }
}

inline std::int32_t four_bytes(const std::int8_t* p) {
    std::int32_t bits;
    __builtin_memcpy(&bits, p, 4);
    return bits;
}

#if defined(MR_ISA_avx512)

constexpr int kTileGroups = 2;  // 8 integer and 8 float accumulators

// acc[r][c]: row r, the 16 tokens of group c.
template <bool Q8, int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     __m512 (&acc)[4][C]) {
    for (std::int64_t b = 0; b < blocks; ++b, ++w) {
        __m512i sum[4][C];
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            const __m512i start = _mm512_sub_epi32(
                _mm512_set1_epi32(kMagicBits),
                _mm512_slli_epi32(_mm512_loadu_si512(groups[c][b].sum), Q8 ? 7 : 3));
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) sum[r][c] = start;
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            __m512i v[C];
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) v[c] = _mm512_loadu_si512(groups[c][b].q + i * 64);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                const __m512i q = _mm512_set1_epi32(four_bytes(w->q + i * 16 + r * 4));
#pragma GCC unroll 2
                for (int c = 0; c < C; ++c) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], q, v[c]);
            }
        }
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            const __m512 d = _mm512_loadu_ps(groups[c][b].d);
            const __m512 minus = _mm512_loadu_ps(groups[c][b].minus);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                const __m512 t = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[r][c]), d, minus);
                acc[r][c] = _mm512_fmadd_ps(t, _mm512_set1_ps(w->scale[r]), acc[r][c]);
            }
        }
    }
}

#else

constexpr int kTileGroups = 1;

// acc[r][0]: row r, the 8 tokens of the group.
template <bool Q8, int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     __m256 (&acc)[4][C]) {
    static_assert(C == 1);
    const GroupBlock* x = groups[0];
    const __m256i magic = _mm256_set1_epi32(kMagicBits), ones = _mm256_set1_epi16(1);
    for (std::int64_t b = 0; b < blocks; ++b, ++w, ++x) {
        __m256i sum[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) sum[r] = Q8 ? magic : _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m256i v = load_32(x->q + i * 32);
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                const __m256i q = _mm256_set1_epi32(four_bytes(w->q + i * 16 + r * 4));
                if constexpr (Q8) {
                    const __m256i pairs =
                        _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(v, q));
                    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
                } else {  // 16 products of at most 15 * 127 fit 16 bits
                    sum[r] = _mm256_add_epi16(sum[r], _mm256_maddubs_epi16(q, v));
                }
            }
        }
        const __m256 d = _mm256_loadu_ps(x->d), minus = _mm256_loadu_ps(x->minus);
        const __m256i start = _mm256_sub_epi32(magic, _mm256_slli_epi32(load_32(x->sum), 3));
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            if constexpr (!Q8) sum[r] = _mm256_add_epi32(_mm256_madd_epi16(sum[r], ones), start);
            const __m256 t = _mm256_fmadd_ps(_mm256_castsi256_ps(sum[r]), d, minus);
            acc[r][0] = _mm256_fmadd_ps(t, _mm256_set1_ps(w->scale[r]), acc[r][0]);
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
    Vec acc[4][C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
        groups[c] = x + c * blocks;
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) acc[r][c] = zero();
    }
    gemm_acc<Q8, C>(w, blocks, groups, acc);
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {  // transposes: tokens of a row to rows of a token
        alignas(64) float by_row[4][kGroup];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) store_vec(by_row[r], acc[r][c]);
        for (int t = 0; t < kGroup && c * kGroup + t < tokens; ++t) {
            const float sums[4] = {by_row[0][t], by_row[1][t], by_row[2][t], by_row[3][t]};
            store_four(job, token + c * kGroup + t, row, valid, sums);
        }
    }
}

}  // namespace
