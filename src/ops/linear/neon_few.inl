// smmla for at most two groups of tokens (a verified draft, a block of a diffusion model): the
// weights are used once or twice, so they go directly from the file to registers.

namespace {

// Columns [16 h, 16 h + 16) of 4 rows, by eights: even[i] has 8 columns of row 0, then of row 2;
// odd[i] of rows 1 and 3. Interleaved rows need one instruction per register for this order.
template <bool Q8, bool Interleaved>
inline void pairs_of_four(const unsigned char* const* rows, int h, int8x16_t (&even)[2],
                          int8x16_t (&odd)[2]) {
    if constexpr (Interleaved) {
        int8x16_t w[4];  // w[j]: columns 4 j to 4 j + 3 of the 4 rows
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const uint8x16_t q = vld1q_u8(rows[0] + (Q8 ? h * 64 : 0) + j * 16);
            if constexpr (Q8) {
                w[j] = vreinterpretq_s8_u8(q);
            } else {
                const uint8x16_t nibbles = h == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
                w[j] = vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8));
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const int32x4_t a = vreinterpretq_s32_s8(w[2 * i]);
            const int32x4_t b = vreinterpretq_s32_s8(w[2 * i + 1]);
            even[i] = vreinterpretq_s8_s32(vtrn1q_s32(a, b));
            odd[i] = vreinterpretq_s8_s32(vtrn2q_s32(a, b));
        }
    } else {
        int8x16_t w[4];
        half_of_four<Q8>(rows, 0, h, w);
        const int64x2_t w0 = vreinterpretq_s64_s8(w[0]), w1 = vreinterpretq_s64_s8(w[1]);
        const int64x2_t w2 = vreinterpretq_s64_s8(w[2]), w3 = vreinterpretq_s64_s8(w[3]);
        even[0] = vreinterpretq_s8_s64(vzip1q_s64(w0, w2));
        even[1] = vreinterpretq_s8_s64(vzip2q_s64(w0, w2));
        odd[0] = vreinterpretq_s8_s64(vzip1q_s64(w1, w3));
        odd[1] = vreinterpretq_s8_s64(vzip2q_s64(w1, w3));
    }
}

inline float32x4_t twice(const float* two) {  // {two[0], two[1], two[0], two[1]}
    const float32x2_t v = vld1_f32(two);
    return vcombine_f32(v, v);
}

// 4 rows times P pairs of tokens; x is the first group, the next lies `blocks` further. The sums of
// a block are exact and are scaled as in gemm_acc(): the bits are those of any number of tokens.
template <bool Q8, bool Interleaved, int P>
inline void gemm_direct(const LinearJob& job, const unsigned char* const* four, std::int64_t blocks,
                        const GroupBlock* x, std::int64_t row, std::int64_t valid) {
    constexpr int kBytes = Q8 ? 34 : 18;
    constexpr int C = (P + 1) / 2;
    const unsigned char* rows[4] = {four[0], four[1], four[2], four[3]};
    const unsigned char* ahead =
        Interleaved ? rows[0] + 2048 : rows[3] + blocks * static_cast<std::int64_t>(kBytes);
    float32x4_t even[P], odd[P];  // rows 0 and 2, 1 and 3: {r t, r t+1, r+2 t, r+2 t+1}
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) even[p] = odd[p] = vdupq_n_f32(0);
    for (std::int64_t b = 0; b < blocks; ++b, ++x) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        ahead += 4 * kBytes;
        int32x4_t even_sum[P], odd_sum[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            even_sum[p] = fresh<std::int32_t, int32x4_t>(kStart);
            odd_sum[p] = fresh<std::int32_t, int32x4_t>(kStart);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            int8x16_t even_w[2], odd_w[2];
            pairs_of_four<Q8, Interleaved>(rows, h, even_w, odd_w);
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const GroupBlock& group = x[p / 2 * blocks];
                    const int8x16_t v = vld1q_s8(group.q + h * 64 + i * 32 + p % 2 * 16);
                    even_sum[p] = vmmlaq_s32(even_sum[p], even_w[i], v);
                    odd_sum[p] = vmmlaq_s32(odd_sum[p], odd_w[i], v);
                }
            }
        }
        const float32x4_t scale =
            Interleaved ? scales_interleaved(rows[0] + 4 * (kBytes - 2)) : scales_of_four(rows, 0);
        const float32x4_t even_scale = vtrn1q_f32(scale, scale);
        const float32x4_t odd_scale = vtrn2q_f32(scale, scale);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            const GroupBlock& group = x[p / 2 * blocks];
            const float32x4_t d = twice(group.d + p % 2 * 2), minus = twice(group.minus + p % 2 * 2);
            const float32x4_t e = vfmaq_f32(minus, vreinterpretq_f32_s32(even_sum[p]), d);
            const float32x4_t o = vfmaq_f32(minus, vreinterpretq_f32_s32(odd_sum[p]), d);
            even[p] = vfmaq_f32(even[p], e, even_scale);
            odd[p] = vfmaq_f32(odd[p], o, odd_scale);
        }
        if constexpr (Interleaved) {
            rows[0] += 4 * kBytes;
        } else {
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) rows[r] += kBytes;
        }
    }
    float32x4_t acc[4][C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
        const int next = 2 * c + 1 < P ? 2 * c + 1 : 2 * c;  // unused if P is odd
        const float64x2_t e0 = vreinterpretq_f64_f32(even[2 * c]);
        const float64x2_t e1 = vreinterpretq_f64_f32(even[next]);
        const float64x2_t o0 = vreinterpretq_f64_f32(odd[2 * c]);
        const float64x2_t o1 = vreinterpretq_f64_f32(odd[next]);
        acc[0][c] = vreinterpretq_f32_f64(vzip1q_f64(e0, e1));
        acc[1][c] = vreinterpretq_f32_f64(vzip1q_f64(o0, o1));
        acc[2][c] = vreinterpretq_f32_f64(vzip2q_f64(e0, e1));
        acc[3][c] = vreinterpretq_f32_f64(vzip2q_f64(o0, o1));
    }
    store_tile<C>(job, acc, 0, job.tokens, row, valid);
}

// Rows [begin, end); `four_rows` gives the addresses of 4 rows.
template <bool Q8, bool Interleaved, int P, typename FourRows>
void few_tokens(const LinearJob& job, std::int64_t begin, std::int64_t end, FourRows four_rows) {
    const auto* x = static_cast<const GroupBlock*>(job.xq);
    const unsigned char* rows[4];
    for (std::int64_t row = begin; row < end; row += 4) {
        four_rows(row, rows);
        gemm_direct<Q8, Interleaved, P>(job, rows, job.k / 32, x, row, end - row);
    }
}

}  // namespace
