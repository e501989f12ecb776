// Float weights on a SIMD path. The path provides
//   Vec, kLanes, zero(), fused(acc, a, b) = a * b + acc,
//   load<Kind>(p): kLanes weights of that kind as Vec; p unaligned
//   load_here(p, i): kLanes floats from p + i, after the products before it and not earlier
//   sums_of_four(v, out): out[i] = sum of the lanes of v[i], by a fixed tree
//   kTileTokens: tokens of the largest tile of 4 rows whose accumulators fit the registers.

namespace {

constexpr std::int64_t kFloatChunk = 16;  // rows unpacked together

template <WeightKind Kind>
constexpr int kFloatBytes = Kind == WeightKind::f32 ? 4 : 2;

// R rows times T tokens, one accumulator each. R is 4 or 8; rows past `valid` repeat the last one.
template <WeightKind Kind, int R, int T>
void float_tile(const LinearJob& job, const unsigned char* const* w, std::int64_t token,
                std::int64_t row, std::int64_t valid) {
    constexpr int kBytes = kFloatBytes<Kind>;
    const std::int64_t k = job.k;
    const float* x[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) x[t] = job.x + (token + t) * k;
    Vec acc[T][R];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[t][r] = zero();
    }
    // If the weights are read only once, the next rows in memory are prefetched while these are
    // summed. (Into L2: they are too long for L1.)
    const unsigned char* ahead = w[R - 1] + k * kBytes;
    const std::int64_t pace = job.tokens <= kTileTokens ? R * kBytes : 0;
    std::int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
#pragma GCC unroll 8
        for (int line = 0; line < R * kLanes * kBytes; line += 64) {
            __builtin_prefetch(ahead + i * pace + line, 0, 2);
        }
        Vec row_w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) row_w[r] = load<Kind>(w[r] + i * kBytes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const Vec v =
                T == kTileTokens ? load_here(x[t], i) : load<WeightKind::f32>(x[t] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[t][r] = fused(acc[t][r], row_w[r], v);
        }
    }
    if (i < k) {  // the tail: the same step, filled up with zeros
        const auto rest = static_cast<std::size_t>(k - i);
        unsigned char part[kLanes * 4] = {};
        Vec row_w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            __builtin_memcpy(part, w[r] + i * kBytes, rest * kBytes);
            row_w[r] = load<Kind>(part);
        }
        float part_x[kLanes] = {};
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            __builtin_memcpy(part_x, x[t] + i, rest * sizeof(float));
            const Vec v = load<WeightKind::f32>(part_x);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[t][r] = fused(acc[t][r], row_w[r], v);
        }
    }
    Vec done[T][R];  // separate, so that acc is only indexed by constants and stays in registers
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) done[t][r] = acc[t][r];
    }
    for (int t = 0; t < T; ++t) {
        for (int r = 0; r < R && r < valid; r += 4) {
            float sums[4];
            sums_of_four(&done[t][r], sums);
            store_four(job, token + t, row + r, valid - r, sums);
        }
    }
}

// Tokens [token, ...) of one tile of 4 rows: as many as the registers hold, then the rest.
template <WeightKind Kind, int T = kTileTokens>
std::int64_t float_tokens(const LinearJob& job, const unsigned char* const* w, std::int64_t token,
                          std::int64_t row, std::int64_t valid) {
    if (job.tokens - token >= T) {
        float_tile<Kind, 4, T>(job, w, token, row, valid);
        return T;
    }
    if constexpr (T > 1) return float_tokens<Kind, T - 1>(job, w, token, row, valid);
    return 0;
}

// Rows [row, row + count), count <= kFloatChunk: their weights stay in cache over all tokens.
template <WeightKind Kind>
void float_chunk(const LinearJob& job, const unsigned char* w, std::size_t row_bytes,
                 std::int64_t row, std::int64_t count) {
    const std::int64_t last = count - 1;
    for (std::int64_t token = 0, step = 0; token < job.tokens; token += step) {
        for (std::int64_t r = 0; r < count; r += 4) {
            const unsigned char* four[4];
            for (std::int64_t j = 0; j < 4; ++j) {
                const std::int64_t at = r + j < last ? r + j : last;
                four[j] = w + static_cast<std::size_t>(at) * row_bytes;
            }
            step = float_tokens<Kind>(job, four, token, row + r, count - r);
        }
    }
}

template <WeightKind Kind>
void float_rows(const LinearJob& job, std::int64_t begin, std::int64_t end, void* pack) {
    if (job.tokens == 1) {
        for (std::int64_t row = begin; row < end; row += 8) {
            const unsigned char* eight[8];
            for (std::int64_t j = 0; j < 8; ++j) {
                const std::int64_t at = row + j < end ? row + j : end - 1;
                eight[j] = job.w + static_cast<std::size_t>(at) * job.row_bytes;
            }
            float_tile<Kind, 8, 1>(job, eight, 0, row, end - row);
        }
        return;
    }
    for (std::int64_t row = begin; row < end; row += kFloatChunk) {
        const std::int64_t count = end - row < kFloatChunk ? end - row : kFloatChunk;
        const unsigned char* from = job.w + static_cast<std::size_t>(row) * job.row_bytes;
        // Halves are converted to f32 once if many tokens will read them.
        if (Kind == WeightKind::f32 || job.tokens <= 2 * kTileTokens) {
            float_chunk<Kind>(job, from, job.row_bytes, row, count);
            continue;
        }
        auto* wide = static_cast<float*>(pack);
        for (std::int64_t r = 0; r < count; ++r) {
            const unsigned char* one = from + static_cast<std::size_t>(r) * job.row_bytes;
            float* to = wide + r * job.k;
            std::int64_t i = 0;
            for (; i + kLanes <= job.k; i += kLanes) {
                store_vec(to + i, load<Kind>(one + i * kFloatBytes<Kind>));
            }
            for (; i < job.k; ++i) to[i] = float_weight(Kind, one, i);
        }
        float_chunk<WeightKind::f32>(job, static_cast<const unsigned char*>(pack),
                                     static_cast<std::size_t>(job.k) * sizeof(float), row, count);
    }
}

}  // namespace
