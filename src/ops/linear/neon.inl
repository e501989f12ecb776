// Arm NEON: sdot, and smmla for many tokens if the path has it.

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

// GCC would move the loads of all tokens to the front of a tile, and then has no registers for two
// of its 24 sums. Those go through memory, and the tile waits for them: 12 cycles instead of 6.
inline Vec load_here(const float* p, std::int64_t i) {
    Vec v;
    asm volatile("ldr %q0, [%1, %2]"
                 : "=w"(v)
                 : "r"(p), "r"(i * 4), "m"(*reinterpret_cast<const float(*)[]>(p)));
    return v;
}

inline void sums_of_four(const Vec* v, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}

// --- quantised, one token ---

// The scales of 4 rows at byte `at`. Gathered in a general register: the vector pipes are busy.
inline float32x4_t scales_of_four(const unsigned char* const* rows, std::size_t at) {
    std::uint16_t h[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) __builtin_memcpy(&h[r], rows[r] + at, 2);
    const std::uint64_t bits = h[0] | static_cast<std::uint64_t>(h[1]) << 16 |
                               static_cast<std::uint64_t>(h[2]) << 32 |
                               static_cast<std::uint64_t>(h[3]) << 48;
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits)));
}

// A block of 4 rows, in assembly up to the exact sums of the block: v24-27 are the rows' dot
// products, added across lanes in pairs. While 4 rows are summed, the next 4 in memory are
// prefetched: 4 streams of a few lines each would start cold every time.
#define MR_GEMV_TAIL(start)              \
    "ldr q6, [%[x], #" #start            \
    "]\n"                                \
    "orr %[h0], %[h0], %[h1], lsl #16\n" \
    "orr %[h2], %[h2], %[h3], lsl #16\n" \
    "addp v24.4s, v24.4s, v25.4s\n"      \
    "addp v26.4s, v26.4s, v27.4s\n"      \
    "orr %[h0], %[h0], %[h2], lsl #32\n" \
    "ldp q7, q8, [%[x], #32]\n"          \
    "addp v24.4s, v24.4s, v26.4s\n"      \
    "fmov d9, %[h0]\n"                   \
    "add v24.4s, v24.4s, v6.4s\n"        \
    "fcvtl v9.4s, v9.4h\n"               \
    "add %[x], %[x], #96\n"              \
    "fmla v8.4s, v24.4s, v7.4s\n"        \
    "subs %[blocks], %[blocks], #1\n"    \
    "fmla %[acc].4s, v8.4s, v9.4s\n"     \
    "b.ne 1b\n"

template <bool Q8>
inline void gemv_four(const unsigned char* const* rows, std::int64_t blocks, const TokenBlock* x,
                      float* sums) {
    const unsigned char *p0 = rows[0], *p1 = rows[1], *p2 = rows[2], *p3 = rows[3];
    const unsigned char* ahead = p3 + blocks * (Q8 ? 34 : 18);
    std::uint64_t h0, h1, h2, h3;  // scales
    float32x4_t acc = vdupq_n_f32(0);
    static_assert(sizeof(TokenBlock) == 96);
    if constexpr (Q8) {
        asm volatile(
            "1:\n"
            "ldp q4, q5, [%[x]]\n"
            "ldur q16, [%[p0], #2]\n"
            "ldur q17, [%[p1], #2]\n"
            "ldur q18, [%[p2], #2]\n"
            "ldur q19, [%[p3], #2]\n"
            "movi v24.2d, #0\n"
            "movi v25.2d, #0\n"
            "movi v26.2d, #0\n"
            "movi v27.2d, #0\n"
            "ldur q20, [%[p0], #18]\n"
            "ldur q21, [%[p1], #18]\n"
            "ldur q22, [%[p2], #18]\n"
            "ldur q23, [%[p3], #18]\n"
            "sdot v24.4s, v16.16b, v4.16b\n"
            "sdot v25.4s, v17.16b, v4.16b\n"
            "ldrh %w[h0], [%[p0]], #34\n"
            "sdot v26.4s, v18.16b, v4.16b\n"
            "sdot v27.4s, v19.16b, v4.16b\n"
            "ldrh %w[h1], [%[p1]], #34\n"
            "prfm pldl1keep, [%[ahead]]\n"
            "sdot v24.4s, v20.16b, v5.16b\n"
            "sdot v25.4s, v21.16b, v5.16b\n"
            "ldrh %w[h2], [%[p2]], #34\n"
            "prfm pldl1keep, [%[ahead], #64]\n"
            "sdot v26.4s, v22.16b, v5.16b\n"
            "sdot v27.4s, v23.16b, v5.16b\n"
            "ldrh %w[h3], [%[p3]], #34\n"
            "add %[ahead], %[ahead], #136\n" MR_GEMV_TAIL(64)
            : [p0] "+r"(p0), [p1] "+r"(p1), [p2] "+r"(p2), [p3] "+r"(p3), [ahead] "+r"(ahead),
              [x] "+r"(x), [blocks] "+r"(blocks), [acc] "+w"(acc), [h0] "=&r"(h0), [h1] "=&r"(h1),
              [h2] "=&r"(h2), [h3] "=&r"(h3)
            :
            : "v4", "v5", "v6", "v7", "v8", "v9", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
              "v23", "v24", "v25", "v26", "v27", "cc", "memory");
    } else {
        const uint8x16_t low = vdupq_n_u8(15);
        asm volatile(
            "1:\n"
            "ldur q20, [%[p0], #2]\n"
            "ldur q21, [%[p1], #2]\n"
            "ldur q22, [%[p2], #2]\n"
            "ldur q23, [%[p3], #2]\n"
            "ldp q4, q5, [%[x]]\n"
            "movi v24.2d, #0\n"
            "movi v25.2d, #0\n"
            "movi v26.2d, #0\n"
            "movi v27.2d, #0\n"
            "and v16.16b, v20.16b, %[low].16b\n"
            "ushr v20.16b, v20.16b, #4\n"
            "ldrh %w[h0], [%[p0]], #18\n"
            "and v17.16b, v21.16b, %[low].16b\n"
            "ushr v21.16b, v21.16b, #4\n"
            "ldrh %w[h1], [%[p1]], #18\n"
            "and v18.16b, v22.16b, %[low].16b\n"
            "ushr v22.16b, v22.16b, #4\n"
            "ldrh %w[h2], [%[p2]], #18\n"
            "and v19.16b, v23.16b, %[low].16b\n"
            "ushr v23.16b, v23.16b, #4\n"
            "ldrh %w[h3], [%[p3]], #18\n"
            "sdot v24.4s, v16.16b, v4.16b\n"
            "sdot v25.4s, v17.16b, v4.16b\n"
            "prfm pldl1keep, [%[ahead]]\n"
            "sdot v26.4s, v18.16b, v4.16b\n"
            "sdot v27.4s, v19.16b, v4.16b\n"
            "prfm pldl1keep, [%[ahead], #64]\n"
            "sdot v24.4s, v20.16b, v5.16b\n"
            "sdot v25.4s, v21.16b, v5.16b\n"
            "add %[ahead], %[ahead], #72\n"
            "sdot v26.4s, v22.16b, v5.16b\n"
            "sdot v27.4s, v23.16b, v5.16b\n" MR_GEMV_TAIL(80)
            : [p0] "+r"(p0), [p1] "+r"(p1), [p2] "+r"(p2), [p3] "+r"(p3), [ahead] "+r"(ahead),
              [x] "+r"(x), [blocks] "+r"(blocks), [acc] "+w"(acc), [h0] "=&r"(h0), [h1] "=&r"(h1),
              [h2] "=&r"(h2), [h3] "=&r"(h3)
            : [low] "w"(low)
            : "v4", "v5", "v6", "v7", "v8", "v9", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
              "v23", "v24", "v25", "v26", "v27", "cc", "memory");
    }
    vst1q_f32(sums, acc);
}

#undef MR_GEMV_TAIL

// The same for 4 rows that linear_repack() interleaved: lanes are rows, there are no sums across
// lanes, and memory is one stream. Prefetch runs kAhead bytes ahead.
template <bool Q8>
inline void gemv_interleaved(const unsigned char* w, std::int64_t blocks, const TokenBlock* x,
                             float* sums) {
    constexpr std::int64_t kAhead = 2048;
    float32x4_t acc = vdupq_n_f32(0);
    if constexpr (Q8) {
        asm volatile(
            "1:\n"
            "ldp q4, q5, [%[x]]\n"
            "ldr q24, [%[x], #64]\n"
            "ldp q7, q8, [%[x], #32]\n"
            "ldp q16, q17, [%[w]]\n"
            "ldp q18, q19, [%[w], #32]\n"
            "ldp q20, q21, [%[w], #64]\n"
            "ldp q22, q23, [%[w], #96]\n"
            "ldr d9, [%[w], #128]\n"
            "movi v25.2d, #0\n"
            "prfm pldl1keep, [%[w], %[ahead]]\n"
            "sdot v24.4s, v16.16b, v4.4b[0]\n"
            "sdot v25.4s, v17.16b, v4.4b[1]\n"
            "sdot v24.4s, v18.16b, v4.4b[2]\n"
            "sdot v25.4s, v19.16b, v4.4b[3]\n"
            "prfm pldl1keep, [%[w], %[next]]\n"
            "sdot v24.4s, v20.16b, v5.4b[0]\n"
            "sdot v25.4s, v21.16b, v5.4b[1]\n"
            "sdot v24.4s, v22.16b, v5.4b[2]\n"
            "sdot v25.4s, v23.16b, v5.4b[3]\n"
            "add %[w], %[w], #136\n"
            "add %[x], %[x], #96\n"
            "fcvtl v9.4s, v9.4h\n"
            "add v24.4s, v24.4s, v25.4s\n"
            "subs %[blocks], %[blocks], #1\n"
            "fmla v8.4s, v24.4s, v7.4s\n"
            "fmla %[acc].4s, v8.4s, v9.4s\n"
            "b.ne 1b\n"
            : [w] "+r"(w), [x] "+r"(x), [blocks] "+r"(blocks), [acc] "+w"(acc)
            : [ahead] "r"(kAhead), [next] "r"(kAhead + 64)
            : "v4", "v5", "v7", "v8", "v9", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",
              "v24", "v25", "cc", "memory");
    } else {
        const uint8x16_t low = vdupq_n_u8(15);
        asm volatile(
            "1:\n"
            "ldp q20, q21, [%[w]]\n"
            "ldp q22, q23, [%[w], #32]\n"
            "ldr d9, [%[w], #64]\n"
            "ldp q4, q5, [%[x]]\n"
            "ldr q24, [%[x], #80]\n"
            "ldp q7, q8, [%[x], #32]\n"
            "movi v25.2d, #0\n"
            "prfm pldl1keep, [%[w], %[ahead]]\n"
            "and v16.16b, v20.16b, %[low].16b\n"
            "ushr v20.16b, v20.16b, #4\n"
            "and v17.16b, v21.16b, %[low].16b\n"
            "ushr v21.16b, v21.16b, #4\n"
            "and v18.16b, v22.16b, %[low].16b\n"
            "ushr v22.16b, v22.16b, #4\n"
            "and v19.16b, v23.16b, %[low].16b\n"
            "ushr v23.16b, v23.16b, #4\n"
            "sdot v24.4s, v16.16b, v4.4b[0]\n"
            "sdot v25.4s, v20.16b, v5.4b[0]\n"
            "sdot v24.4s, v17.16b, v4.4b[1]\n"
            "sdot v25.4s, v21.16b, v5.4b[1]\n"
            "sdot v24.4s, v18.16b, v4.4b[2]\n"
            "sdot v25.4s, v22.16b, v5.4b[2]\n"
            "sdot v24.4s, v19.16b, v4.4b[3]\n"
            "sdot v25.4s, v23.16b, v5.4b[3]\n"
            "add %[w], %[w], #72\n"
            "add %[x], %[x], #96\n"
            "fcvtl v9.4s, v9.4h\n"
            "add v24.4s, v24.4s, v25.4s\n"
            "subs %[blocks], %[blocks], #1\n"
            "fmla v8.4s, v24.4s, v7.4s\n"
            "fmla %[acc].4s, v8.4s, v9.4s\n"
            "b.ne 1b\n"
            : [w] "+r"(w), [x] "+r"(x), [blocks] "+r"(blocks), [acc] "+w"(acc)
            : [ahead] "r"(kAhead), [low] "w"(low)
            : "v4", "v5", "v7", "v8", "v9", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",
              "v24", "v25", "cc", "memory");
    }
    vst1q_f32(sums, acc);
}

// Half h (16 columns) of 4 rows at p: in file order, or interleaved by linear_repack().
template <bool Q8>
inline void half_of_four(const unsigned char* const* rows, std::size_t at, int h,
                         int8x16_t (&w)[4]) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        if constexpr (Q8) {
            w[r] = vld1q_s8(reinterpret_cast<const std::int8_t*>(rows[r] + at + 2 + h * 16));
        } else {
            const uint8x16_t q = vld1q_u8(rows[r] + at + 2);
            const uint8x16_t nibbles = h == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
            w[r] = vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8));
        }
    }
}

template <bool Q8>
inline void half_interleaved(const unsigned char* block, int h, int8x16_t (&w)[4]) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(block + (Q8 ? h * 64 : 0));
    const uint32x4x4_t rows = vld4q_u32(words);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        const uint8x16_t q = vreinterpretq_u8_u32(rows.val[r]);
        if constexpr (Q8) {
            w[r] = vreinterpretq_s8_u8(q);
        } else {
            const uint8x16_t nibbles = h == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
            w[r] = vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8));
        }
    }
}

inline float32x4_t scales_interleaved(const unsigned char* at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}

// --- quantised, many tokens ---

// 4 rows of a block in the layout of the tiles.
inline void store_four_block(const int8x16_t (&w)[4][2], float32x4_t scale, FourBlock* to) {
    if constexpr (kRun == 4) {  // one row after the other
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            vst1q_s8(to->q + r * 32, w[r][0]);
            vst1q_s8(to->q + r * 32 + 16, w[r][1]);
        }
    } else {  // 8 elements of 4 rows, then the next 8
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; ++p) {
                const int64x2_t even = vreinterpretq_s64_s8(w[2 * p][h]);
                const int64x2_t odd = vreinterpretq_s64_s8(w[2 * p + 1][h]);
                std::int8_t* q = to->q + h * 64 + p * 16;
                vst1q_s8(q, vreinterpretq_s8_s64(vzip1q_s64(even, odd)));
                vst1q_s8(q + 32, vreinterpretq_s8_s64(vzip2q_s64(even, odd)));
            }
        }
    }
    vst1q_f32(to->scale, scale);
}

template <bool Q8, bool Interleaved>
inline void pack_four(const unsigned char* const* rows, std::int64_t blocks, FourBlock* to) {
    constexpr std::size_t kBytes = Q8 ? 34 : 18;
    const unsigned char* block = rows[0];
    const unsigned char* ahead =
        Interleaved ? block + 1024 : rows[3] + blocks * static_cast<std::int64_t>(kBytes);
    std::size_t at = 0;
    for (std::int64_t b = 0; b < blocks; ++b, at += kBytes, block += 4 * kBytes, ++to) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        ahead += 4 * kBytes;
        int8x16_t half[2][4];
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            if constexpr (Interleaved) {
                half_interleaved<Q8>(block, h, half[h]);
            } else {
                half_of_four<Q8>(rows, at, h, half[h]);
            }
        }
        int8x16_t w[4][2];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            w[r][0] = half[0][r];
            w[r][1] = half[1][r];
        }
        store_four_block(
            w,
            Interleaved ? scales_interleaved(block + 4 * (kBytes - 2)) : scales_of_four(rows, at),
            to);
    }
}

// Loads a register from p again: the load pipes have room, whereas a register copy would take a
// slot of the pipes that the products need.
template <typename T, typename V>
inline V fresh(const T* p) {
    V v;
    asm volatile("ldr %q0, %1" : "=w"(v) : "m"(*reinterpret_cast<const T(*)[4]>(p)));
    return v;
}

alignas(32) constexpr std::int32_t kStart[8] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits,
                                                kMagicBits, kMagicBits, kMagicBits, kMagicBits};

#if defined(MR_ISA_neon_dot)

constexpr int kTileGroups = 2;  // 8 integer and 8 float accumulators, 4 rows, 2 groups

// The source of a tile's 4 rows of weights: the result of pack_four(), or the file.
struct Packed {
    const FourBlock* block;
    void half(int h, int8x16_t (&v)[4]) const {
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) v[r] = vld1q_s8(block->q + r * 32 + h * 16);
    }
    float32x4_t scales() const { return vld1q_f32(block->scale); }
    void next() { ++block; }
};

template <bool Q8, bool Interleaved>
struct Direct {
    static constexpr int kBytes = Q8 ? 34 : 18;
    const unsigned char* row[4];  // only row[0] if interleaved
    const unsigned char* ahead;   // the next 4 rows
    void half(int h, int8x16_t (&v)[4]) const {
        if constexpr (Interleaved) {
            half_interleaved<Q8>(row[0], h, v);
        } else {
            half_of_four<Q8>(row, 0, h, v);
        }
    }
    float32x4_t scales() const {
        return Interleaved ? scales_interleaved(row[0] + 4 * (kBytes - 2)) : scales_of_four(row, 0);
    }
    void next() {
        if constexpr (Interleaved) {
            row[0] += 4 * kBytes;
        } else {
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) row[r] += kBytes;
        }
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        ahead += 4 * kBytes;
    }
};

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

// out[r][c]: row r, the 4 tokens of group c.
template <int C, typename Source>
__attribute__((noinline)) void gemm_acc(Source w, std::int64_t blocks,
                                        const GroupBlock* const* groups, float32x4_t (&out)[4][C]) {
    const GroupBlock* x[C];
    float32x4_t acc[4][C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
        x[c] = groups[c];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) acc[r][c] = vdupq_n_f32(0);
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
        int32x4_t sum[4][C];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) sum[r][c] = fresh<std::int32_t, int32x4_t>(kStart);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            int8x16_t v[4];
            w.half(h, v);
            dot_lane<0>(sum, v, x, h * 64);
            dot_lane<1>(sum, v, x, h * 64);
            dot_lane<2>(sum, v, x, h * 64);
            dot_lane<3>(sum, v, x, h * 64);
        }
        const float32x4_t scale = w.scales();
        w.next();
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
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) out[r][c] = acc[r][c];
    }
}

// The block of the tile of 8 tokens in assembly: compilers insert register moves, and every move
// takes a slot from the products. 64 sdot + 16 fmla at two per cycle are 40 cycles; the rest are
// loads. v0-7 sums (row * 2 + group), v8-15 weights, v16-23 activations, v24-31 acc.
#define MR_DOT4(s0, s1, s2, s3, x, w0, w1, w2, w3, lane) \
    "sdot v" #s0 ".4s, v" #x ".16b, v" #w0 ".4b[" #lane  \
    "]\n"                                                \
    "sdot v" #s1 ".4s, v" #x ".16b, v" #w1 ".4b[" #lane  \
    "]\n"                                                \
    "sdot v" #s2 ".4s, v" #x ".16b, v" #w2 ".4b[" #lane  \
    "]\n"                                                \
    "sdot v" #s3 ".4s, v" #x ".16b, v" #w3 ".4b[" #lane "]\n"
#define MR_DOT(x0, x1, w0, w1, w2, w3, lane)      \
    MR_DOT4(0, 2, 4, 6, x0, w0, w1, w2, w3, lane) \
    MR_DOT4(1, 3, 5, 7, x1, w0, w1, w2, w3, lane)

inline void gemm_acc_8(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                       float32x4_t (&out)[4][2]) {
    const GroupBlock *x0 = groups[0], *x1 = groups[1];
    static_assert(sizeof(FourBlock) == 144 && sizeof(GroupBlock) == 160);
    asm volatile(
        "movi v24.2d, #0\n"
        "movi v25.2d, #0\n"
        "movi v26.2d, #0\n"
        "movi v27.2d, #0\n"
        "movi v28.2d, #0\n"
        "movi v29.2d, #0\n"
        "movi v30.2d, #0\n"
        "movi v31.2d, #0\n"
        "1:\n"
        "ldp q8, q12, [%[w]]\n"
        "ldp q0, q2, [%[start]]\n"
        "ldp q16, q17, [%[x0]]\n"
        "ldp q9, q13, [%[w], #32]\n"
        "ldp q4, q6, [%[start]]\n"
        "ldp q10, q14, [%[w], #64]\n"
        "ldp q11, q15, [%[w], #96]\n"
        "ldp q18, q19, [%[x1]]\n"
        "ldp q1, q3, [%[start]]\n"
        "ldp q5, q7, [%[start]]\n"
        MR_DOT(16, 18, 8, 9, 10, 11, 0)
        "ldp q20, q21, [%[x0], #32]\n"
        "ldp q22, q23, [%[x1], #32]\n"
        "prfm pldl1keep, [%[w], #1152]\n"
        MR_DOT(17, 19, 8, 9, 10, 11, 1)
        "ldp q16, q17, [%[x0], #64]\n"
        "ldp q18, q19, [%[x1], #64]\n"
        "prfm pldl1keep, [%[w], #1216]\n"
        MR_DOT(20, 22, 8, 9, 10, 11, 2)
        "prfm pldl1keep, [%[w], #1280]\n"
        MR_DOT(21, 23, 8, 9, 10, 11, 3)
        "ldp q20, q21, [%[x0], #96]\n"
        "ldp q22, q23, [%[x1], #96]\n"
        MR_DOT(16, 18, 12, 13, 14, 15, 0)
        MR_DOT(17, 19, 12, 13, 14, 15, 1)
        "ldp q16, q8, [%[x0], #128]\n"  // d and -kMagic * d
        "ldr q17, [%[x1], #128]\n"
        "ldr q18, [%[w], #128]\n"  // scales
        MR_DOT(20, 22, 12, 13, 14, 15, 2)
        MR_DOT(21, 23, 12, 13, 14, 15, 3)
        "ldr q9, [%[x0], #144]\n"
        "fmla v8.4s, v0.4s, v16.4s\n"
        "ldr q10, [%[x0], #144]\n"
        "fmla v9.4s, v2.4s, v16.4s\n"
        "ldr q11, [%[x0], #144]\n"
        "fmla v10.4s, v4.4s, v16.4s\n"
        "ldr q12, [%[x1], #144]\n"
        "fmla v11.4s, v6.4s, v16.4s\n"
        "ldr q13, [%[x1], #144]\n"
        "fmla v12.4s, v1.4s, v17.4s\n"
        "ldr q14, [%[x1], #144]\n"
        "fmla v13.4s, v3.4s, v17.4s\n"
        "ldr q15, [%[x1], #144]\n"
        "fmla v14.4s, v5.4s, v17.4s\n"
        "fmla v15.4s, v7.4s, v17.4s\n"
        "fmla v24.4s, v8.4s, v18.s[0]\n"
        "add %[x0], %[x0], #160\n"
        "fmla v26.4s, v9.4s, v18.s[1]\n"
        "add %[x1], %[x1], #160\n"
        "fmla v28.4s, v10.4s, v18.s[2]\n"
        "add %[w], %[w], #144\n"
        "fmla v30.4s, v11.4s, v18.s[3]\n"
        "subs %[blocks], %[blocks], #1\n"
        "fmla v25.4s, v12.4s, v18.s[0]\n"
        "fmla v27.4s, v13.4s, v18.s[1]\n"
        "fmla v29.4s, v14.4s, v18.s[2]\n"
        "fmla v31.4s, v15.4s, v18.s[3]\n"
        "b.ne 1b\n"
        "stp q24, q25, [%[out]]\n"
        "stp q26, q27, [%[out], #32]\n"
        "stp q28, q29, [%[out], #64]\n"
        "stp q30, q31, [%[out], #96]\n"
        : [w] "+r"(w), [x0] "+r"(x0), [x1] "+r"(x1), [blocks] "+r"(blocks)
        : [start] "r"(kStart), [out] "r"(out)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
          "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
          "v27", "v28", "v29", "v30", "v31", "cc", "memory");
}

#undef MR_DOT
#undef MR_DOT4

#else

constexpr int kTileGroups = 2;

// smmla gives 2 rows times 2 tokens: {r0 t0, r0 t1, r1 t0, r1 t1}.
template <int C>
inline void gemm_acc(const FourBlock* w, std::int64_t blocks, const GroupBlock* const* groups,
                     float32x4_t (&out)[4][C]) {
    float32x4_t acc[2][2 * C];  // rows {0,1} and {2,3}; tokens by twos
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
#pragma GCC unroll 4
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
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            const float64x2_t a = vreinterpretq_f64_f32(acc[p][2 * c]);
            const float64x2_t z = vreinterpretq_f64_f32(acc[p][2 * c + 1]);
            out[2 * p][c] = vreinterpretq_f32_f64(vzip1q_f64(a, z));
            out[2 * p + 1][c] = vreinterpretq_f32_f64(vzip2q_f64(a, z));
        }
    }
}

#endif

// Stores acc[r][c], row r and the 4 tokens of group c, to rows [row, row + min(valid, 4)) of the
// `tokens` tokens from `token` on, at most C groups.
template <int C>
inline void store_tile(const LinearJob& job, const float32x4_t (&acc)[4][C], std::int64_t token,
                       std::int64_t tokens, std::int64_t row, std::int64_t valid) {
    for (int c = 0; c < C; ++c) {  // transposes: tokens of a row to rows of a token
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

// 4 packed rows times C groups of tokens; x is the first group, the next lies `blocks` further.
template <bool Q8, int C>
inline void gemm_four(const LinearJob& job, const FourBlock* w, std::int64_t blocks,
                      const GroupBlock* x, std::int64_t token, std::int64_t tokens,
                      std::int64_t row, std::int64_t valid) {
    const GroupBlock* groups[C];
    for (int c = 0; c < C; ++c) groups[c] = x + c * blocks;
    float32x4_t acc[4][C];
#if defined(MR_ISA_neon_dot)
    if constexpr (C == 2) {
        gemm_acc_8(w, blocks, groups, acc);
    } else {
        gemm_acc<C>(Packed{w}, blocks, groups, acc);
    }
#else
    gemm_acc<C>(w, blocks, groups, acc);
#endif
    store_tile<C>(job, acc, token, tokens, row, valid);
}

#if defined(MR_ISA_neon_dot)
// The same for so few tokens that unpacking does not pay off: directly from the file.
template <bool Q8, bool Interleaved, int C>
inline void gemm_direct(const LinearJob& job, const unsigned char* const* rows, std::int64_t blocks,
                        const GroupBlock* x, std::int64_t row, std::int64_t valid) {
    const GroupBlock* groups[C];
    for (int c = 0; c < C; ++c) groups[c] = x + c * blocks;
    const Direct<Q8, Interleaved> w{
        {rows[0], rows[1], rows[2], rows[3]},
        rows[Interleaved ? 0 : 3] + (Interleaved ? 4 : 1) * job.row_bytes};
    float32x4_t acc[4][C];
    gemm_acc<C>(w, blocks, groups, acc);
    store_tile<C>(job, acc, 0, job.tokens, row, valid);
}
#endif

}  // namespace
