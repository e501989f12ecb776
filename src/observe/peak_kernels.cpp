// Compiled once per instruction path. Loops in assembly: a compiler may move registers about, and
// every move would take a slot from the products. Enough accumulators that no instruction waits for
// the one before it (latency times pipes is 16 at most). Operands are not zero: some machines run
// faster on zeros.
#include "observe/peak_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mr::observe::MR_ISA {

// Every instruction of a round once for each of the registers 0 to 11, and 12 to 23.
#define MR_FIRST_12(one) \
    one(0) one(1) one(2) one(3) one(4) one(5) one(6) one(7) one(8) one(9) one(10) one(11)
#define MR_NEXT_12(one) \
    one(12) one(13) one(14) one(15) one(16) one(17) one(18) one(19) one(20) one(21) one(22) one(23)
#define MR_ALL_24(one) MR_FIRST_12(one) MR_NEXT_12(one)

#if defined(MR_ISA_neon_dot) || defined(MR_ISA_neon_i8mm)

// One operand is loaded again (from L1) after every four products, as a tile of a matrix product
// does. Where operands never change, a Neoverse V1 settles on two of its four pipes: its scheduler
// keeps a chain of sums on one pipe.
#define MR_CLEAR(i) "movi v" #i ".2d, #0\n"
#define MR_FOUR(step, a, b, c, d, x) \
    step(a, x) step(b, x) step(c, x) step(d, x) "ldr q" #x ", [%[from]]\n"
#define MR_ROUND(step)                \
    MR_FOUR(step, 0, 1, 2, 3, 28)     \
    MR_FOUR(step, 4, 5, 6, 7, 29)     \
    MR_FOUR(step, 8, 9, 10, 11, 28)   \
    MR_FOUR(step, 12, 13, 14, 15, 29) \
    MR_FOUR(step, 16, 17, 18, 19, 28) \
    MR_FOUR(step, 20, 21, 22, 23, 29)
#define MR_RUN(step, value)  \
    const auto both = value; \
    asm volatile("ldr q28, [%[from]]\nldr q29, [%[from]]\nldr q30, [%[from]]\n"                  \
                 MR_ALL_24(MR_CLEAR) "1:\n" MR_ROUND(step) MR_ROUND(step)                         \
                 "subs %[rounds], %[rounds], #1\n"                                                \
                 "b.ne 1b\n"                                                                      \
                 : [rounds] "+r"(rounds)                                                          \
                 : [from] "r"(&both), "m"(both)                                                   \
                 : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",      \
                   "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",   \
                   "v23", "v28", "v29", "v30", "cc")

std::int64_t peak_f32(std::int64_t rounds) {
    const std::int64_t flops = rounds * 48 * 8;
#define MR_STEP(i, x) "fmla v" #i ".4s, v30.4s, v" #x ".4s\n"
    MR_RUN(MR_STEP, vdupq_n_f32(0.125f));
#undef MR_STEP
    return flops;
}

std::int64_t peak_int8(std::int64_t rounds) {
#if defined(MR_ISA_neon_i8mm)
    const std::int64_t flops = rounds * 48 * 64;  // [2, 8] times [8, 2]
#define MR_STEP(i, x) "smmla v" #i ".4s, v30.16b, v" #x ".16b\n"
#else
    const std::int64_t flops = rounds * 48 * 32;
#define MR_STEP(i, x) "sdot v" #i ".4s, v30.16b, v" #x ".16b\n"
#endif
    MR_RUN(MR_STEP, vdupq_n_s8(3));
#undef MR_STEP
    return flops;
}

std::int64_t peak_bf16([[maybe_unused]] std::int64_t rounds) {
#if defined(MR_ISA_neon_i8mm)
    const std::int64_t flops = rounds * 48 * 32;  // [2, 4] times [4, 2]
#define MR_STEP(i, x) "bfmmla v" #i ".4s, v30.8h, v" #x ".8h\n"
    MR_RUN(MR_STEP, vdupq_n_u16(0x3e00));  // 0.125
#undef MR_STEP
    return flops;
#else
    return 0;
#endif
}

#elif defined(MR_ISA_avx512)

#define MR_CLEAR(i) "vpxord %%zmm" #i ", %%zmm" #i ", %%zmm" #i "\n"
#define MR_RUN(step, a, b)                                                                           \
    asm volatile(MR_ALL_24(MR_CLEAR) "1:\n" MR_ALL_24(step) "sub $1, %[rounds]\n"                  \
                                                            "jnz 1b\n"                             \
                 : [rounds] "+r"(rounds)                                                           \
                 : [x] "v"(a), [y] "v"(b)                                                          \
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",         \
                   "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "cc"); \
    _mm256_zeroupper()

std::int64_t peak_f32(std::int64_t rounds) {
    const std::int64_t flops = rounds * 24 * 32;
#define MR_STEP(i) "vfmadd231ps %[x], %[y], %%zmm" #i "\n"
    MR_RUN(MR_STEP, _mm512_set1_ps(1.0f), _mm512_set1_ps(0.125f));
#undef MR_STEP
    return flops;
}

std::int64_t peak_int8(std::int64_t rounds) {
    const std::int64_t flops = rounds * 24 * 128;
#define MR_STEP(i) "vpdpbusd %[x], %[y], %%zmm" #i "\n"
    MR_RUN(MR_STEP, _mm512_set1_epi8(3), _mm512_set1_epi8(5));
#undef MR_STEP
    return flops;
}

std::int64_t peak_bf16(std::int64_t) { return 0; }

#elif defined(MR_ISA_avx2)

#define MR_CLEAR(i) "vpxor %%ymm" #i ", %%ymm" #i ", %%ymm" #i "\n"
#define MR_RUN(step, a, b)                                                                           \
    asm volatile(MR_FIRST_12(MR_CLEAR) "1:\n" MR_FIRST_12(step) "sub $1, %[rounds]\n"              \
                                                                "jnz 1b\n"                         \
                 : [rounds] "+r"(rounds)                                                           \
                 : [x] "x"(a), [y] "x"(b)                                                          \
                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                   "xmm10", "xmm11", "xmm12", "cc"); \
    _mm256_zeroupper()

std::int64_t peak_f32(std::int64_t rounds) {
    const std::int64_t flops = rounds * 12 * 16;
#define MR_STEP(i) "vfmadd231ps %[x], %[y], %%ymm" #i "\n"
    MR_RUN(MR_STEP, _mm256_set1_ps(1.0f), _mm256_set1_ps(0.125f));
#undef MR_STEP
    return flops;
}

// As the fastest product of 4-bit weights has it: pairs of products in 16 bits, added up there.
std::int64_t peak_int8(std::int64_t rounds) {
    const std::int64_t flops = rounds * 12 * 64;
#define MR_STEP(i) "vpmaddubsw %[x], %[y], %%ymm12\nvpaddw %%ymm12, %%ymm" #i ", %%ymm" #i "\n"
    MR_RUN(MR_STEP, _mm256_set1_epi8(3), _mm256_set1_epi8(5));
#undef MR_STEP
    return flops;
}

std::int64_t peak_bf16(std::int64_t) { return 0; }

#else

// Plain C++, as the kernels of this path are. Every value follows from the one before, so a
// compiler can leave nothing out.
std::int64_t peak_f32(std::int64_t rounds) {
    constexpr int kChains = 16;
    float sum[kChains] = {};
    for (int i = 0; i < kChains; ++i) sum[i] = static_cast<float>(i);
    for (std::int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) sum[i] = sum[i] * 0.75f + 0.5f;
    }
    volatile float kept = 0;
    for (const float one : sum) kept = kept + one;
    return rounds * kChains * 2;
}

std::int64_t peak_int8(std::int64_t rounds) {
    constexpr int kChains = 16;
    std::uint32_t sum[kChains] = {};
    for (int i = 0; i < kChains; ++i) sum[i] = static_cast<std::uint32_t>(i);
    volatile std::uint32_t factor = 3;
    const std::uint32_t by = factor;
    for (std::int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) sum[i] = sum[i] * by + by;
    }
    volatile std::uint32_t kept = 0;
    for (const std::uint32_t one : sum) kept = kept + one;
    return rounds * kChains * 2;
}

std::int64_t peak_bf16(std::int64_t) { return 0; }

#endif

}  // namespace mr::observe::MR_ISA
