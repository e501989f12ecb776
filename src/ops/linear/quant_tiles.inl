// Quantised weights on a SIMD path: unpacking, and the loops over rows and tokens. The path
// provides
//   gemv_four<Q8>(rows, blocks, x, sums)   4 rows times the one token
//   gemv_interleaved<Q8>(...)              the same for interleaved rows
//   pack_four<Q8, I>(rows, blocks, to)     4 rows as gemm_four wants them
//   gemm_four<Q8, C>(...)                  4 rows times C groups of tokens, and stores them

namespace {

constexpr std::int64_t kQuantChunk = 32;  // rows unpacked together

// The same q as in quantised() of linear_kernels.cpp, written for the vectoriser.
inline QuantScale quantise_block(const float* x, std::int8_t* q) {
    std::uint32_t top = 0;
    for (int i = 0; i < 32; ++i) {
        const std::uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    const QuantScale scale = quant_scale(top);
    if (scale.inverse == 0) {
        __builtin_memset(q, 0, 32);
        return scale;
    }
    for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<std::int8_t>(float_bits(x[i] * scale.inverse + kMagic) & 0xffu);
    }
    return scale;
}

inline std::int32_t sum_block(const std::int8_t* q) {
    std::int32_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += q[i];
    return sum;
}

// Interleaved: rows come in fours, as made by linear_repack().
template <bool Q8, bool Interleaved>
void quantised_rows(const LinearJob& job, std::int64_t begin, std::int64_t end, void* pack) {
    const std::int64_t blocks = job.k / 32;
    const auto four_rows = [&](std::int64_t row, const unsigned char** rows) {
        for (std::int64_t j = 0; j < 4; ++j) {
            const std::int64_t at = Interleaved ? row : row + j < end ? row + j : end - 1;
            rows[j] = job.w + static_cast<std::size_t>(at) * job.row_bytes;
        }
    };
    const unsigned char* rows[4];
    if (job.tokens <= kFewTokens) {
        const auto* tokens = static_cast<const TokenBlock*>(job.xq);
        for (std::int64_t row = begin; row < end; row += 4) {
            four_rows(row, rows);
            for (std::int64_t t = 0; t < job.tokens; ++t) {
                float sums[4];
                if constexpr (Interleaved) {
                    gemv_interleaved<Q8>(rows[0], blocks, tokens + t * blocks, sums);
                } else {
                    gemv_four<Q8>(rows, blocks, tokens + t * blocks, sums);
                }
                store_four(job, t, row, end - row, sums);
            }
        }
        return;
    }
    const auto* x = static_cast<const GroupBlock*>(job.xq);
    const std::int64_t groups = (job.tokens + kGroup - 1) / kGroup;
#if defined(MR_ISA_neon_dot)
    if (groups <= kTileGroups) {
        for (std::int64_t row = begin; row < end; row += 4) {
            four_rows(row, rows);
            if (groups == 1) {
                gemm_direct<Q8, Interleaved, 1>(job, rows, blocks, x, row, end - row);
            } else {
                gemm_direct<Q8, Interleaved, 2>(job, rows, blocks, x, row, end - row);
            }
        }
        return;
    }
#endif
#if defined(MR_ISA_neon_i8mm)
    switch ((job.tokens + 1) / 2) {
        case 1:
            return few_tokens<Q8, Interleaved, 1>(job, begin, end, four_rows);
        case 2:
            return few_tokens<Q8, Interleaved, 2>(job, begin, end, four_rows);
        case 3:
            return few_tokens<Q8, Interleaved, 3>(job, begin, end, four_rows);
        case 4:
            return few_tokens<Q8, Interleaved, 4>(job, begin, end, four_rows);
        default:
            break;
    }
#endif
    for (std::int64_t first = begin; first < end; first += kQuantChunk) {
        const std::int64_t last = first + kQuantChunk < end ? first + kQuantChunk : end;
        auto* to = static_cast<FourBlock*>(pack);
        for (std::int64_t row = first; row < last; row += 4, to += blocks) {
            four_rows(row, rows);
            pack_four<Q8, Interleaved>(rows, blocks, to);
        }
        for (std::int64_t group = 0; group < groups; group += kTileGroups) {
            const auto* w = static_cast<const FourBlock*>(pack);
            const GroupBlock* xs = x + group * blocks;
            const std::int64_t tokens = job.tokens - group * kGroup;
            for (std::int64_t row = first; row < last; row += 4, w += blocks) {
                if (group + kTileGroups <= groups) {
                    gemm_four<Q8, kTileGroups>(job, w, blocks, xs, group * kGroup, tokens, row,
                                               last - row);
                } else {
                    for (std::int64_t g = 0; group + g < groups; ++g) {
                        gemm_four<Q8, 1>(job, w, blocks, xs + g * blocks, (group + g) * kGroup,
                                         tokens - g * kGroup, row, last - row);
                    }
                }
            }
        }
    }
}

}  // namespace

void linear_quantise(void* xq, const float* x, std::int64_t k, std::int64_t tokens,
                     std::int64_t begin, std::int64_t end) {
    const std::int64_t blocks = k / 32;
    alignas(64) std::int8_t q[32];
    if (tokens <= kFewTokens) {
        for (std::int64_t t = begin; t < end; ++t) {
            for (std::int64_t b = 0; b < blocks; ++b) {
                TokenBlock& to = static_cast<TokenBlock*>(xq)[t * blocks + b];
                const QuantScale scale = quantise_block(x + t * k + b * 32, to.q);
                const std::int32_t sum = sum_block(to.q);
                for (int i = 0; i < 4; ++i) {
                    to.d[i] = scale.d;
                    to.minus[i] = -kMagic * scale.d;
                    to.start[i] = kMagicBits - kWeightOffset * sum;
                    to.start4[i] = kMagicBits - 8 * sum;
                }
            }
        }
        return;
    }
    for (std::int64_t t = begin; t < (end + kGroup - 1) / kGroup * kGroup; ++t) {
        const std::int64_t in = t % kGroup;
        GroupBlock* to = static_cast<GroupBlock*>(xq) + t / kGroup * blocks;
        for (std::int64_t b = 0; b < blocks; ++b, ++to) {
            QuantScale scale{0, 0};
            if (t < end) {
                scale = quantise_block(x + t * k + b * 32, q);
            } else {  // pads the last group
                __builtin_memset(q, 0, 32);
            }
            for (int i = 0; i < 32; i += kRun) {
                __builtin_memcpy(to->q + i * kGroup + in * kRun, q + i, kRun);
            }
            to->d[in] = scale.d;
            to->minus[in] = -kMagic * scale.d;
#if defined(__x86_64__)
            to->sum[in] = sum_block(q);
#endif
        }
    }
}

void linear_rows(const LinearJob& job, std::int64_t begin, std::int64_t end, void* pack) {
    switch (job.kind) {
        case WeightKind::f32:
            return float_rows<WeightKind::f32>(job, begin, end, pack);
        case WeightKind::f16:
            return float_rows<WeightKind::f16>(job, begin, end, pack);
        case WeightKind::bf16:
            return float_rows<WeightKind::bf16>(job, begin, end, pack);
        case WeightKind::q8_0:
            return quantised_rows<true, false>(job, begin, end, pack);
        case WeightKind::q4_0:
            return quantised_rows<false, false>(job, begin, end, pack);
        case WeightKind::q8_0x4:
            return quantised_rows<true, true>(job, begin, end, pack);
        case WeightKind::q4_0x4:
            return quantised_rows<false, true>(job, begin, end, pack);
    }
}
