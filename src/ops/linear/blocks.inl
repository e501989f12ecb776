// The scratch layout of 8-bit activations and weights on the SIMD paths.

namespace {

// A group is kGroup tokens, as many as a vector has lanes of 32 bits. A block of it holds kRun
// bytes of each token in turn, the amount one dot-product instruction takes per lane.
#if defined(MR_ISA_neon_dot)
constexpr int kGroup = 4, kRun = 4;
#elif defined(MR_ISA_neon_i8mm)
constexpr int kGroup = 4, kRun = 8;
#elif defined(MR_ISA_avx2)
constexpr int kGroup = 8, kRun = 4;
#elif defined(MR_ISA_avx512)
constexpr int kGroup = 16, kRun = 4;
#endif

// float(isum) * d is fma(kMagic + isum, d, -kMagic * d), and kMagic + isum comes from adding isum
// to the bits of kMagic: |isum| <= 32 * 128 * 127 < 2^22. All of it is exact but the one rounding
// of the product (linear_kernels.h), and nothing is converted.
constexpr float kMagic = 0x1.8p23f;
constexpr std::int32_t kMagicBits = 0x4b400000;

// The number a path adds to 8-bit weights to make them unsigned.
#if defined(MR_ISA_avx512)
constexpr std::int32_t kWeightOffset = 128;
#else
constexpr std::int32_t kWeightOffset = 0;
#endif

// So few tokens are multiplied one after the other, 4 rows at a time, while the rows are in L1:
// unpacking rows for a tile of tokens would cost more. More than 1 where a path has no other loop for
// a few tokens.
#if defined(MR_ISA_avx512)
constexpr std::int64_t kFewTokens = 6;
#elif defined(MR_ISA_avx2)
constexpr std::int64_t kFewTokens = 4;
#else
constexpr std::int64_t kFewTokens = 1;
#endif

// A block of one of a few tokens; every scalar is repeated four times, for 4 rows.
struct TokenBlock {
    std::int8_t q[32];
    float d[4];
    float minus[4];          // -kMagic * d
    std::int32_t start[4];   // kMagicBits - kWeightOffset * sum(q)
    std::int32_t start4[4];  // kMagicBits - 8 * sum(q): 4-bit weights are used as 0..15
};

struct GroupBlock {
    std::int8_t q[32 * kGroup];
    float d[kGroup];
    float minus[kGroup];
#if defined(__x86_64__)
    std::int32_t sum[kGroup];  // of q, for unsigned weights
#endif
};
static_assert(kFewTokens * sizeof(TokenBlock) <= kTokenGroup * kQuantBlockBytes);
static_assert(sizeof(GroupBlock) <= kGroup * kQuantBlockBytes && kTokenGroup % kGroup == 0);

// 4 rows of weights, unpacked.
struct FourBlock {
    std::int8_t q[4 * 32];
    float scale[4];
};

}  // namespace
