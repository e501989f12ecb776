#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/half.h"
#include "ops/simd/testing.h"

namespace mr::ops::linear_test {
namespace {

using testing::for_each_isa;
using testing::kPoison;
using testing::kRoundoff;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr DType kQuants[] = {DType::q8_0, DType::q4_0};
constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};

// [n, k] weights as stored in a file, starting at an odd address, and their values.
struct Weights {
    Weights(DType dtype, std::int64_t n, std::int64_t k, unsigned seed) : n_(n), k_(k) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0, 0.5f);
        const std::size_t count = static_cast<std::size_t>(n * k);
        values.resize(count);
        bytes.resize(dtype_bytes(dtype, count) + 1);
        unsigned char* to = bytes.data() + 1;
        tensor = {to, dtype, {n, k}};
        const auto put_u16 = [&](std::uint16_t bits) {
            std::memcpy(to, &bits, 2);
            to += 2;
        };
        for (std::size_t i = 0; i < count; ++i) {
            if (dtype == DType::f32) {
                const float value = normal(random);
                std::memcpy(to, &value, 4);
                to += 4;
                values[i] = value;
            } else if (dtype == DType::f16) {
                const std::uint16_t bits = f32_to_f16(normal(random));
                put_u16(bits);
                values[i] = f16_to_f32(bits);
            } else if (dtype == DType::bf16) {
                const std::uint16_t bits = f32_to_bf16(normal(random));
                put_u16(bits);
                values[i] = bf16_to_f32(bits);
            } else if (i % 32 == 0) {
                const std::uint16_t bits = f32_to_f16(normal(random) * 0.01f);
                put_u16(bits);
                const double scale = f16_to_f32(bits);
                // Every value of a byte occurs, including -128.
                for (std::size_t j = 0; dtype == DType::q8_0 && j < 32; ++j) {
                    const auto q = static_cast<std::int8_t>(random());
                    *to++ = static_cast<unsigned char>(q);
                    values[i + j] = q * scale;
                }
                for (std::size_t j = 0; dtype == DType::q4_0 && j < 16; ++j) {
                    const auto q = static_cast<unsigned char>(random());
                    *to++ = q;
                    values[i + j] = ((q & 15) - 8) * scale;
                    values[i + 16 + j] = ((q >> 4) - 8) * scale;
                }
            }
        }
    }
    double at(std::int64_t row, std::int64_t i) const {
        return values[static_cast<std::size_t>(row * k_ + i)];
    }

    std::int64_t n_, k_;
    std::vector<unsigned char> bytes;
    std::vector<double> values;
    Tensor tensor;
};

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& value : out) value = normal(random);
    return out;
}

// x as quantised weights see it: q * d, in blocks of 32 (linear_kernels.h).
struct Quantised {
    explicit Quantised(const std::vector<float>& x) : value(x.size()), error(x.size()) {
        for (std::size_t b = 0; b < x.size(); b += 32) {
            float top = 0;
            for (std::size_t i = b; i < b + 32; ++i) top = std::max(top, std::fabs(x[i]));
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(top / 127.0f);
            const float d = std::bit_cast<float>((bits + 2) & ~3u);
            for (std::size_t i = b; i < b + 32; ++i) {
                const double q = d > 0 ? std::nearbyint(x[i] * (1.0f / d)) : 0.0;
                value[i] = q * d;
                // Half a step, and the shift of a value of 127 steps by the rounding of d and 1/d.
                error[i] = d * (0.5 + 127 * 4 * kRoundoff);
            }
        }
    }
    std::vector<double> value, error;
};

// Poisons out (and a guard on both sides of it) and runs the op.
std::vector<float> run(ThreadPool& pool, const std::vector<float>& x, const Weights& w,
                       std::int64_t tokens, Tensor bias = {}, const float* residual = nullptr,
                       bool in_place = false) {
    constexpr std::size_t kGuard = 64;
    const std::size_t count = static_cast<std::size_t>(tokens * w.n_);
    std::vector<float> out(count + 2 * kGuard, kPoison);
    std::vector<std::byte> scratch(linear_scratch_bytes(tokens, w.k_, pool.size()) + 1);
    Context ctx{&pool, nullptr, std::span(scratch).subspan(1)};
    LinearOut one{w.tensor, {out.data() + kGuard, DType::f32, {tokens, w.n_}}, bias, {}};
    if (residual && in_place) {
        std::memcpy(one.out.data, residual, count * sizeof(float));
        one.residual = one.out;
    } else if (residual) {
        one.residual = {const_cast<float*>(residual), DType::f32, {tokens, w.n_}};
    }
    linear(ctx, {const_cast<float*>(x.data()), DType::f32, {tokens, w.k_}}, one);
    for (std::size_t i = 0; i < kGuard; ++i) {
        EXPECT_TRUE(std::isnan(out[i]) && std::isnan(out[kGuard + count + i])) << "guard " << i;
    }
    return {out.begin() + kGuard, out.begin() + kGuard + static_cast<std::ptrdiff_t>(count)};
}

bool same_bits(const float* a, const float* b, std::int64_t count) {
    return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

constexpr std::int64_t kTokenCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 129};
constexpr std::int64_t kMaxTokens = 129;
constexpr std::int64_t kRowCounts[] = {1, 3, 17, 255};

// Every dtype and path, odd sizes, against f64; and the same bits for any number of tokens.
void check_sizes(DType dtype, std::int64_t n, std::int64_t k) {
    SCOPED_TRACE(std::string(dtype_name(dtype)) + " n " + std::to_string(n) + " k " +
                 std::to_string(k));
    const Weights w(dtype, n, k, static_cast<unsigned>(n * 1000 + k));
    const std::vector<float> x = random_floats(kMaxTokens * k, static_cast<unsigned>(k));
    const bool quantised = is_quantised(dtype);
    std::vector<double> seen(x.begin(), x.end()), error(x.size(), 0.0);
    if (quantised) {
        Quantised q(x);
        seen = q.value;
        error = q.error;
    }
    // want: with the activations as quantised; far: how much the quantisation may change it.
    const std::size_t outputs = static_cast<std::size_t>(kMaxTokens * n);
    std::vector<double> want(outputs), near(outputs), exact(outputs), far(outputs);
    for (std::int64_t t = 0; t < kMaxTokens; ++t) {
        for (std::int64_t r = 0; r < n; ++r) {
            double sum = 0, plain = 0, size = 0, moved = 0, block = 0;
            for (std::int64_t i = 0; i < k; ++i) {
                const auto at = static_cast<std::size_t>(t * k + i);
                const double term = w.at(r, i) * seen[at];
                sum += term;
                plain += w.at(r, i) * x[at];
                moved += std::fabs(w.at(r, i)) * error[at];
                // A block's sum is exact: only its total is rounded.
                block += term;
                if (!quantised || i % 32 == 31) {
                    size += std::fabs(block);
                    block = 0;
                }
            }
            const auto at = static_cast<std::size_t>(t * n + r);
            // Quantised: two sequential roundings per block. Floats:
            // one rounding per product, at most k/4 + 1 sums in a lane
            // (at least 4 lanes) and a tree over at most 16 lanes.
            const double steps =
                quantised ? static_cast<double>(k) / 32 + 1 : static_cast<double>(k) / 4 + 6;
            want[at] = sum;
            near[at] = steps * kRoundoff * size * 1.001 + 1e-40;
            exact[at] = plain;
            far[at] = near[at] + moved;
        }
    }
    ThreadPool pool(2);
    for_each_isa([&] {
        const std::vector<float> all = run(pool, x, w, kMaxTokens);
        for (std::size_t i = 0; i < outputs; ++i) {
            ASSERT_NEAR(all[i], want[i], near[i]) << "output " << i;
            ASSERT_NEAR(all[i], exact[i], far[i]) << "output " << i;
        }
        for (std::int64_t tokens : kTokenCounts) {
            const std::vector<float> some = run(pool, x, w, tokens);
            ASSERT_TRUE(same_bits(some.data(), all.data(), tokens * n)) << tokens << " tokens";
        }
        // Each token alone.
        for (std::int64_t t : {1, 4, 15, 16, 128}) {
            const std::vector<float> row(x.begin() + t * k, x.begin() + (t + 1) * k);
            const std::vector<float> one = run(pool, row, w, 1);
            ASSERT_TRUE(same_bits(one.data(), all.data() + t * n, n)) << "token " << t;
        }
    });
}

TEST(Linear, FloatWeightsAgreeWithDouble) {
    for (DType dtype : kFloats) {
        for (std::int64_t n : kRowCounts) {
            for (std::int64_t k : {1, 5, 31, 33, 100, 352}) {
                if (n == 255 && k < 33) continue;
                check_sizes(dtype, n, k);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST(Linear, QuantisedWeightsAgreeWithDouble) {
    for (DType dtype : kQuants) {
        for (std::int64_t n : kRowCounts) {
            for (std::int64_t k : {32, 64, 96, 352}) {
                check_sizes(dtype, n, k);
                if (HasFatalFailure()) return;
            }
        }
    }
}

// A model's sizes: many pieces of work, and rows longer than a tile of cache.
TEST(Linear, LargeMatricesAgreeWithDouble) {
    constexpr std::int64_t kN = 531, kK = 4096, kTokens = 19;
    const std::vector<float> x = random_floats(kTokens * kK, 5);
    const Quantised q(x);
    for (DType dtype : kAll) {
        SCOPED_TRACE(dtype_name(dtype));
        const Weights w(dtype, kN, kK, 17);
        ThreadPool pool(3);
        for_each_isa([&] {
            const std::vector<float> out = run(pool, x, w, kTokens);
            for (std::int64_t r = 0; r < kN; r += 7) {
                for (std::int64_t t = 0; t < kTokens; ++t) {
                    double sum = 0, size = 0;
                    for (std::int64_t i = 0; i < kK; ++i) {
                        const auto at = static_cast<std::size_t>(t * kK + i);
                        const double term =
                            w.at(r, i) * (is_quantised(dtype) ? q.value[at] : x[at]);
                        sum += term;
                        size += std::fabs(term);
                    }
                    ASSERT_NEAR(out[static_cast<std::size_t>(t * kN + r)], sum,
                                (kK / 4 + 6) * kRoundoff * size);
                }
            }
        });
    }
}

TEST(Linear, BiasAndResidualAreAddedInThatOrder) {
    constexpr std::int64_t kN = 37, kK = 96;
    for (DType dtype : kAll) {
        SCOPED_TRACE(dtype_name(dtype));
        const Weights w(dtype, kN, kK, 3);
        std::vector<float> bias = random_floats(kN, 4);
        for_each_isa([&] {
            ThreadPool pool(2);
            for (std::int64_t tokens : {1, 2, 6, 21}) {
                const std::vector<float> x = random_floats(tokens * kK, 6);
                const std::vector<float> residual = random_floats(tokens * kN, 7);
                const Tensor b{bias.data(), DType::f32, {kN}};
                const auto plain = run(pool, x, w, tokens);
                const auto with_bias = run(pool, x, w, tokens, b);
                const auto with_residual = run(pool, x, w, tokens, {}, residual.data());
                const auto with_both = run(pool, x, w, tokens, b, residual.data());
                const auto in_place = run(pool, x, w, tokens, b, residual.data(), true);
                for (std::size_t i = 0; i < plain.size(); ++i) {
                    const float biased = plain[i] + bias[i % kN];
                    const float both = biased + residual[i];
                    ASSERT_EQ(with_bias[i], biased);
                    ASSERT_EQ(with_residual[i], plain[i] + residual[i]);
                    ASSERT_EQ(with_both[i], both);
                    ASSERT_EQ(in_place[i], both);
                }
            }
        });
    }
}

// Threads and the other members of a group change no bit, and the ledger counts the group once.
TEST(Linear, GroupsAndThreadsChangeNoBit) {
    constexpr std::int64_t kK = 320;
    std::vector<Weights> ws;
    const std::int64_t ns[] = {300, 1, 130, 161, 70};  // several pieces, also of q8_0
    for (std::size_t i = 0; i < 5; ++i)
        ws.emplace_back(kAll[i], ns[i], kK, static_cast<unsigned>(i));
    for_each_isa([&] {
        for (std::int64_t tokens : {1, 3, 8, 18}) {
            const std::vector<float> x = random_floats(tokens * kK, 8);
            std::vector<std::vector<float>> alone;
            ThreadPool one(1);
            for (const Weights& w : ws) alone.push_back(run(one, x, w, tokens));
            for (int threads : {1, 2, 5}) {
                ThreadPool pool(threads);
                Ledger ledger;
                std::vector<std::byte> scratch(linear_scratch_bytes(tokens, kK, threads));
                Context ctx{&pool, &ledger, scratch};
                std::vector<std::vector<float>> outs;
                std::vector<LinearOut> group;
                std::uint64_t bytes = x.size() * 4, written = 0;
                for (Weights& w : ws) {
                    outs.emplace_back(static_cast<std::size_t>(tokens * w.n_), kPoison);
                    written += outs.back().size() * 4;
                    bytes += w.tensor.bytes();
                }
                for (std::size_t i = 0; i < ws.size(); ++i) {
                    group.push_back(
                        {ws[i].tensor, {outs[i].data(), DType::f32, {tokens, ws[i].n_}}, {}, {}});
                }
                linear(ctx, {const_cast<float*>(x.data()), DType::f32, {tokens, kK}}, group,
                       OpKind::lm_head);
                for (std::size_t i = 0; i < ws.size(); ++i) {
                    ASSERT_TRUE(same_bits(outs[i].data(), alone[i].data(), tokens * ws[i].n_))
                        << "member " << i << " of " << threads << " threads";
                }
                EXPECT_EQ(ledger.op(OpKind::linear).calls, 0u);
                EXPECT_EQ(ledger.op(OpKind::lm_head).calls, 1u);
                EXPECT_EQ(ledger.op(OpKind::lm_head).bytes_read, bytes);
                EXPECT_EQ(ledger.op(OpKind::lm_head).bytes_written, written);
                EXPECT_EQ(ledger.op(OpKind::lm_head).flops,
                          2u * static_cast<unsigned>(tokens * kK * (300 + 1 + 130 + 161 + 70)));
            }
        }
    });
}

// Quantised products have the same bits on every path: the portable path is the reference.
TEST(Linear, QuantisedBitsAreTheSameOnEveryPath) {
    constexpr std::int64_t kN = 67, kK = 2048;
    const Isa before = active_isa();
    ThreadPool pool(2);
    for (DType dtype : kQuants) {
        const Weights w(dtype, kN, kK, 9);
        for (std::int64_t tokens : {1, 2, 4, 5, 6, 7, 8, 13}) {
            std::vector<float> x = random_floats(tokens * kK, 10);
            for (std::size_t i = 0; i < 32; ++i) x[i] *= 1e-38f;           // subnormal scale
            for (std::size_t i = 32; i < 64; ++i) x[i] *= 1e25f;           // large
            for (std::size_t i = 64; i < 96; ++i) x[i] = 0;                // no scale
            for (std::size_t i = 96; i < 128; ++i) x[i] = i % 2 ? 1 : -1;  // all at the ends
            for (std::size_t i = 128; i < 160; ++i) x[i] = static_cast<float>(i) - 127.5f + 95.5f;
            set_isa(Isa::portable);
            const std::vector<float> want = run(pool, x, w, tokens);
            for (Isa isa : available_isas()) {
                set_isa(isa);
                const std::vector<float> got = run(pool, x, w, tokens);
                EXPECT_TRUE(same_bits(got.data(), want.data(), tokens * kN))
                    << isa_name(isa) << " " << dtype_name(dtype) << " tokens " << tokens;
            }
        }
    }
    set_isa(before);
}

// A NaN in one token affects that token and no other.
TEST(Linear, NotANumberStaysInItsToken) {
    constexpr std::int64_t kN = 9, kK = 64, kTokens = 6;
    for (DType dtype : kAll) {
        SCOPED_TRACE(dtype_name(dtype));
        const Weights w(dtype, kN, kK, 11);
        for_each_isa([&] {
            ThreadPool pool(1);
            std::vector<float> x = random_floats(kTokens * kK, 12);
            const auto clean = run(pool, x, w, kTokens);
            x[2 * kK + 40] = kPoison;
            x[5 * kK + 3] = std::numeric_limits<float>::infinity();
            const auto out = run(pool, x, w, kTokens);
            const auto single = run(pool, {x.begin() + 2 * kK, x.begin() + 3 * kK}, w, 1);
            for (std::int64_t t = 0; t < kTokens; ++t) {
                for (std::int64_t r = 0; r < kN; ++r) {
                    const auto at = static_cast<std::size_t>(t * kN + r);
                    if (t == 2) {
                        EXPECT_TRUE(std::isnan(out[at]));
                        EXPECT_TRUE(std::isnan(single[static_cast<std::size_t>(r)]));
                    } else if (t == 5) {
                        EXPECT_FALSE(std::isfinite(out[at]));
                    } else {
                        EXPECT_EQ(out[at], clean[at]);
                    }
                }
            }
        });
    }
}

// Half-precision weights at the ends of their range.
TEST(Linear, ExtremeHalvesAreReadExactly) {
    const std::uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c01};
    for (DType dtype : {DType::f16, DType::bf16}) {
        std::vector<std::uint16_t> bits(8 * 8, 0);
        for (std::size_t r = 0; r < 8; ++r) bits[r * 8 + r] = halves[r];
        std::vector<float> x(8, 1.0f);
        for_each_isa([&] {
            ThreadPool pool(1);
            std::vector<float> out(8, kPoison);
            std::vector<std::byte> scratch(linear_scratch_bytes(1, 8, 1));
            linear({&pool, nullptr, scratch}, {x.data(), DType::f32, {1, 8}},
                   {{bits.data(), dtype, {8, 8}}, {out.data(), DType::f32, {1, 8}}, {}, {}});
            for (std::size_t r = 0; r < 8; ++r) {
                EXPECT_EQ(out[r],
                          dtype == DType::f16 ? f16_to_f32(halves[r]) : bf16_to_f32(halves[r]));
            }
        });
    }
}

TEST(Linear, BrokenContractsAreNamed) {
    ThreadPool pool(1);
    std::vector<float> x(64), out(64), bias(64);
    std::vector<unsigned char> bytes(64 * 64 * 4);
    std::vector<std::byte> scratch(linear_scratch_bytes(2, 32, 1));
    const Context ctx{&pool, nullptr, scratch};
    const Tensor in{x.data(), DType::f32, {2, 32}};
    const Tensor w{bytes.data(), DType::q8_0, {8, 32}};
    const Tensor to{out.data(), DType::f32, {2, 8}};
    EXPECT_NO_THROW(linear(ctx, in, {w, to, {}, {}}));
    const auto bad = [&](const Context& c, Tensor a, LinearOut one) {
        EXPECT_THROW(linear(c, a, one), ContractError);
    };
    bad({nullptr, nullptr, scratch}, in, {w, to, {}, {}});
    bad({&pool, nullptr, std::span(scratch).first(scratch.size() - 1)}, in, {w, to, {}, {}});
    bad(ctx, {x.data(), DType::f16, {2, 32}}, {w, to, {}, {}});
    bad(ctx, {x.data(), DType::f32, {64}}, {w, to, {}, {}});
    bad(ctx, {nullptr, DType::f32, {2, 32}}, {w, to, {}, {}});
    bad(ctx, in, {{bytes.data(), DType::q8_0, {8, 64}}, to, {}, {}});
    bad(ctx, in, {{nullptr, DType::q8_0, {8, 32}}, to, {}, {}});
    bad(ctx, in, {{bytes.data(), DType::q6_k, {8, 32}}, to, {}, {}});
    bad(ctx, in, {{bytes.data(), DType::i8, {8, 32}}, to, {}, {}});
    bad(ctx, {x.data(), DType::f32, {2, 31}}, {{bytes.data(), DType::q4_0, {8, 31}}, to, {}, {}});
    bad(ctx, in, {w, {out.data(), DType::f32, {2, 7}}, {}, {}});
    bad(ctx, in, {w, {out.data(), DType::f32, {8, 2}}, {}, {}});
    bad(ctx, in, {w, {nullptr, DType::f32, {2, 8}}, {}, {}});
    bad(ctx, in, {w, {x.data() + 60, DType::f32, {2, 8}}, {}, {}});
    bad(ctx, in, {w, to, {bias.data(), DType::f32, {7}}, {}});
    bad(ctx, in, {w, to, {bias.data(), DType::bf16, {8}}, {}});
    bad(ctx, in, {w, to, {}, {bias.data(), DType::f32, {1, 8}}});
    bad(ctx, in, {w, to, {}, {out.data() + 1, DType::f32, {2, 8}}});
    EXPECT_THROW(linear(ctx, in, std::span<const LinearOut>()), ContractError);
    // No tokens: nothing is done or touched.
    EXPECT_NO_THROW(linear(ctx, {nullptr, DType::f32, {0, 32}}, {w, {}, {}, {}}));
}

// Interleaving 4 rows changes the layout of the weights, but no bit of any result.
TEST(Linear, RepackedWeightsGiveTheSameBits) {
    bool any = false;
    for_each_isa([&] {
        for (DType dtype : kQuants) {
            for (std::int64_t n : {4, 20, 64, 132}) {
                const DType packed = linear_fastest_type(dtype, n);
                if (packed == dtype) continue;
                any = true;
                EXPECT_EQ(linear_fastest_type(dtype, n + 1), dtype);
                for (std::int64_t k : {32, 96, 2048}) {
                    Weights w(dtype, n, k, 7);
                    std::vector<unsigned char> bytes(w.tensor.bytes() + 1);
                    Weights repacked = w;
                    repacked.tensor = {bytes.data() + 1, packed, {n, k}};
                    ThreadPool pool(2);
                    linear_repack(pool, repacked.tensor, w.tensor);
                    for (std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
                        const std::vector<float> x = random_floats(tokens * k, 3);
                        EXPECT_EQ(run(pool, x, repacked, tokens), run(pool, x, w, tokens))
                            << dtype_name(dtype) << " " << n << " x " << k << ", " << tokens;
                    }
                }
            }
        }
    });
    EXPECT_TRUE(any || available_isas().size() == 1);
    const Isa before = active_isa();
    set_isa(Isa::portable);
    EXPECT_EQ(linear_fastest_type(DType::q8_0, 4), DType::q8_0);
    std::vector<unsigned char> bytes(4 * 34);
    Weights w(DType::q8_0, 4, 32, 1);
    w.tensor.dtype = DType::q8_0x4;
    ThreadPool pool(1);
    EXPECT_THROW(run(pool, random_floats(32, 1), w, 1), ContractError);
    set_isa(before);
}

}  // namespace
}  // namespace mr::ops::linear_test
