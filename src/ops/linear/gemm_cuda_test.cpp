#include "ops/linear/gemm_cuda.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/cuda/testing.h"
#include "core/error.h"
#include "ops/linear/gemm_cublaslt.h"
#include "ops/linear/tile_layout.h"
#include "ops/quant/quant.h"

namespace mr::cuda {
namespace {

float rounded(float value, DType type) {
    if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(value));
    return type == DType::f16 ? f16_to_f32(f32_to_f16(value)) : value;
}

// The bits of a test's outputs: NaNs and signed zeros are compared, too.
using Bytes = std::vector<std::byte>;

class GemmTest : public GpuTest {
  protected:
    struct Weights {
        Tensor w;
        std::vector<float> values;  // as the product sees them: [n, k]
    };

    // Uniform in (-1, 1): fast enough for whole layers.
    std::vector<float> noise(std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& v : values) {
            state_ = state_ * 6364136223846793005u + 1442695040888963407u;
            v = static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
        }
        return values;
    }

    Weights weights(DType type, std::int64_t n, std::int64_t k, DType compute) {
        Weights out;
        out.values = noise(n * k);
        if (!ops::is_tiled(type)) {
            out.w = upload(type, {n, k}, out.values);
            return out;
        }
        const DType blocks = type == DType::q8_0x8 ? DType::q8_0 : DType::q4_0;
        Bytes from(dtype_bytes(blocks, out.values.size()));
        ops::quantize(blocks, out.values.data(), from.data(), n * k);
        ops::dequantize(blocks, from.data(), out.values.data(), n * k);
        for (float& v : out.values) v = rounded(v, compute);
        Bytes tiles(ops::tile_bytes(type, n, k));
        ops::pack_tiles(type, from.data(), n, k, tiles.data());
        out.w = Tensor(upload(std::span<const std::byte>(tiles)), type, {n, k});
        return out;
    }

    void give_scratch(const GemmShape& shape) {
        const std::size_t bytes = gemm_scratch_bytes(shape);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }

    Bytes bits(Tensor t) { return download(static_cast<const std::byte*>(t.data), t.bytes()); }

    std::uint64_t state_ = 42;
};

struct Size {
    std::int64_t tokens, n, k;
};

// The error bound of a sum in f32 of k products of rms `term`: errors of one step are at most eps *
// |partial sum|, partial sums grow like sqrt(i) * term, and errors of either sign add up like a
// random walk: eps * term * k / sqrt(2) in all; 8 of these for the worst of many elements. Tensor
// cores truncate where FMA rounds: two more bits.
double tolerance(double squares, std::int64_t k, bool tensor_cores) {
    const double eps = tensor_cores ? 0x1p-22 : 0x1p-24;
    return 8 * eps * std::sqrt(squares / static_cast<double>(k)) * static_cast<double>(k) + 1e-30;
}

// Every out type, with and without bias and residual, by the library and by our own kernels.
class GemmAgainstF64 : public GemmTest {
  protected:
    void check(DType w_type, DType x_type, const Size& size) {
        memory_.reset();
        const auto [tokens, n, k] = size;
        std::vector<float> x_values = noise(tokens * k), bias_values = noise(n),
                           residual_values = noise(tokens * n);
        for (float& v : bias_values) v *= 3;
        const Tensor x = upload(x_type, {tokens, k}, x_values);
        const Tensor bias = upload(DType::f32, {n}, bias_values);
        const Tensor residual = upload(DType::f32, {tokens, n}, residual_values);
        const Weights w = weights(w_type, n, k, x_type);
        references(x_values, w.values, size);
        const std::size_t mark = memory_.used();
        for (const DType out_type : {DType::f32, x_type}) {
            for (int variant = 0; variant < 8; ++variant) {
                const bool with_bias = variant & 1, with_residual = variant & 2;
                const bool own = variant & 4;
                if (with_residual && out_type != DType::f32) continue;
                memory_.reset();
                memory_.alloc(mark);
                const GemmShape shape{n, k, w_type, x_type, out_type, with_bias};
                give_scratch(shape);
                // One row more than requested: it must stay unchanged.
                const Tensor all = poisoned(out_type, {tokens + 1, n});
                const Tensor out = all.slice_rows(0, tokens);
                // In place for the library, out of place for our own kernel, and vice versa for
                // every second shape.
                const bool in_place = with_residual && own == (n % 2 == 0);
                if (in_place) stream_->on_device(out.data, residual.data, out.bytes());
                gemm(ctx_, out, x, w.w, with_bias ? bias : Tensor{},
                     with_residual ? (in_place ? out : residual) : Tensor{}, {.own_kernel = own});
                SCOPED_TRACE(std::string(dtype_name(w_type)) + " x " + dtype_name(x_type) + " -> " +
                             dtype_name(out_type) + " tokens " + std::to_string(tokens) + " n " +
                             std::to_string(n) + " k " + std::to_string(k) +
                             (with_bias ? " bias" : "") + (with_residual ? " residual" : "") +
                             (own ? " own kernel" : " " + gemm_about(shape)));
                const std::vector<float> got = download(all);
                for (const std::byte b : bits(all.slice_rows(tokens, 1))) {
                    ASSERT_EQ(b, std::byte{0xff}) << "written behind the end";
                }
                for (const float v : got) {
                    if (&v - got.data() >= tokens * n) break;
                    ASSERT_TRUE(std::isfinite(v)) << "at " << (&v - got.data());
                }
                for (const Reference& want : references_) {
                    double value = want.sum;
                    const auto col = static_cast<std::size_t>(want.at % n);
                    const auto at = static_cast<std::size_t>(want.at);
                    double slack = tolerance(want.squares, k, x_type != DType::f32);
                    if (with_bias) value += rounded(bias_values[col], out_type);
                    if (with_residual) value += residual_values[at];
                    // The last additions are in f32, too; then the result is stored.
                    slack += (3 * 0x1p-24 + epsilon(out_type)) * (std::abs(value) + slack + 4);
                    ASSERT_NEAR(got[at], value, slack)
                        << "token " << want.at / n << " column " << want.at % n;
                }
            }
        }
    }

  private:
    struct Reference {
        std::int64_t at;  // token * n + column
        double sum, squares;
    };
    // All elements of small products; for large ones the corners and a few thousand others.
    void references(const std::vector<float>& x, const std::vector<float>& w, const Size& size) {
        references_.clear();
        const std::int64_t count = size.tokens * size.n;
        std::vector<std::int64_t> places;
        if (count <= 4096) {
            for (std::int64_t i = 0; i < count; ++i) places.push_back(i);
        } else {
            places = {0, size.n - 1, count - size.n, count - 1};
            std::uniform_int_distribution<std::int64_t> any(0, count - 1);
            for (int i = 0; i < 3000; ++i) places.push_back(any(random_));
        }
        for (const std::int64_t at : places) {
            const float* xs = x.data() + at / size.n * size.k;
            const float* ws = w.data() + at % size.n * size.k;
            double sum = 0, squares = 0;
            for (std::int64_t i = 0; i < size.k; ++i) {
                const double term = double{xs[i]} * double{ws[i]};
                sum += term;
                squares += term * term;
            }
            references_.push_back({at, sum, squares});
        }
    }
    std::vector<Reference> references_;
};

// All pairs of tokens and n, and every k.
std::vector<Size> sizes() {
    std::vector<Size> out;
    for (const std::int64_t tokens : {1, 2, 65, 127, 300}) {
        for (const std::int64_t n : {8, 24, 100, 257, 1000}) out.push_back({tokens, n, 64});
    }
    for (const std::int64_t k : {32, 172, 320, 4096}) {
        out.push_back({1, 257, k});
        out.push_back({127, 1000, k});
        out.push_back({300, 100, k});
    }
    out.push_back({65, 24, 35});  // odd: nothing is aligned
    out.push_back({130, 130, 1});
    return out;
}

TEST_F(GemmAgainstF64, F32) {
    for (const Size& size : sizes()) ASSERT_NO_FATAL_FAILURE(check(DType::f32, DType::f32, size));
}
TEST_F(GemmAgainstF64, F16) {
    for (const Size& size : sizes()) ASSERT_NO_FATAL_FAILURE(check(DType::f16, DType::f16, size));
}
TEST_F(GemmAgainstF64, Bf16) {
    for (const Size& size : sizes()) ASSERT_NO_FATAL_FAILURE(check(DType::bf16, DType::bf16, size));
}
TEST_F(GemmAgainstF64, Q8AndQ4) {
    for (const Size& size : sizes()) {
        if (size.k % 32 != 0) continue;
        ASSERT_NO_FATAL_FAILURE(check(DType::q8_0x8, DType::bf16, size));
        ASSERT_NO_FATAL_FAILURE(check(DType::q4_0x8, DType::bf16, size));
    }
    ASSERT_NO_FATAL_FAILURE(check(DType::q8_0x8, DType::f32, {65, 257, 320}));
    ASSERT_NO_FATAL_FAILURE(check(DType::q4_0x8, DType::f16, {65, 257, 320}));
}
TEST_F(GemmAgainstF64, WeightsOfAnotherType) {
    const Size size{65, 257, 320};
    ASSERT_NO_FATAL_FAILURE(check(DType::f32, DType::bf16, size));
    ASSERT_NO_FATAL_FAILURE(check(DType::f32, DType::f16, size));
    ASSERT_NO_FATAL_FAILURE(check(DType::bf16, DType::f32, size));
    ASSERT_NO_FATAL_FAILURE(check(DType::f16, DType::f32, size));
    ASSERT_NO_FATAL_FAILURE(check(DType::f16, DType::bf16, size));
    ASSERT_NO_FATAL_FAILURE(check(DType::bf16, DType::f16, size));
}

// ---- the bits of a row -----------------------------------------------------------------------

class GemmRows : public GemmTest {
  protected:
    // First row of the slices: 16-byte aligned in every type, not a multiple of any tile.
    static constexpr std::int64_t kTokens = 2000, kFirst = 1205;

    void check(DType w_type, DType x_type, DType out_type, std::int64_t n, std::int64_t k,
               bool with_bias, bool with_residual, bool own = false) {
        memory_.reset();
        SCOPED_TRACE(std::string(dtype_name(w_type)) + " -> " + dtype_name(out_type) + " n " +
                     std::to_string(n) + " k " + std::to_string(k) + (with_bias ? " bias" : "") +
                     (with_residual ? " residual" : ""));
        std::vector<float> x_values = noise(kTokens * k);
        std::vector<float> bias_values = noise(n);
        const Tensor x = upload(x_type, {kTokens, k}, x_values);
        const Weights w = weights(w_type, n, k, x_type);
        const Tensor bias = upload(DType::f32, {n}, bias_values);
        Tensor residual;
        if (with_residual) {
            std::vector<float> values = noise(kTokens * n);
            residual = upload(DType::f32, {kTokens, n}, values);
        }
        const GemmShape shape{n, k, w_type, x_type, out_type, with_bias};
        give_scratch(shape);
        SCOPED_TRACE(own ? "own kernel" : gemm_about(shape));
        const auto product = [&](std::int64_t first, std::int64_t tokens) {
            const Tensor out = poisoned(out_type, {tokens, n});
            gemm(ctx_, out, x.slice_rows(first, tokens), w.w, with_bias ? bias : Tensor{},
                 with_residual ? residual.slice_rows(first, tokens) : Tensor{},
                 {.own_kernel = own});
            return bits(out);
        };
        const Bytes all = product(0, kTokens);
        const std::size_t row = all.size() / kTokens;
        for (const std::int64_t tokens :
             {65, 127, 128, 700, 1, 33, 64, 256, 300, 512, 1024, 1999}) {
            for (const std::int64_t first : {std::int64_t{0}, kFirst}) {
                if (first + tokens > kTokens) continue;
                const Bytes some = product(first, tokens);
                for (std::int64_t t = 0; t < tokens; ++t) {
                    const auto at = static_cast<std::size_t>(t) * row;
                    ASSERT_EQ(
                        std::memcmp(some.data() + at,
                                    all.data() + at + static_cast<std::size_t>(first) * row, row),
                        0)
                        << tokens << " tokens from " << first << ", token " << t;
                }
            }
        }
    }
};

TEST_F(GemmRows, Bf16LayersOfLlama) {
    const DType t = DType::bf16;
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 12288, 4096, false, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 4096, 4096, false, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 22016, 4096, false, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 4096, 11008, false, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 32000, 4096, false, false));
}
TEST_F(GemmRows, Bf16LayersOfPythiaAndSmallOnes) {
    const DType t = DType::bf16;
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 7680, 2560, true, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 2560, 10240, true, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 2304, 768, false, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 768, 2048, false, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 257, 768, false, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 100, 172, true, false));
}
TEST_F(GemmRows, F16) {
    const DType t = DType::f16;
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 4096, 4096, false, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 2304, 768, true, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 768, 2048, true, true));
}
TEST_F(GemmRows, F32) {
    const DType t = DType::f32;
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 4096, 4096, false, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 2304, 768, true, false));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 768, 2048, true, true));
    ASSERT_NO_FATAL_FAILURE(check(t, t, t, 288, 288, false, true));
}
TEST_F(GemmRows, Quantised) {
    ASSERT_NO_FATAL_FAILURE(check(DType::q8_0x8, DType::bf16, DType::bf16, 2304, 768, true, false));
    ASSERT_NO_FATAL_FAILURE(check(DType::q4_0x8, DType::bf16, DType::f32, 768, 2048, false, true));
}
TEST_F(GemmRows, OwnKernels) {
    for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
        ASSERT_NO_FATAL_FAILURE(check(t, t, DType::f32, 768, 2048, true, true, true));
        ASSERT_NO_FATAL_FAILURE(check(t, t, t, 257, 172, true, false, true));
    }
}

// ---- graphs, memory, the timeline --------------------------------------------------------------

TEST_F(GemmTest, IsCapturedAfterPreparingAloneAndAllocatesNothing) {
    const std::int64_t tokens = 300, n = 1024, k = 512;
    for (const DType w_type : {DType::bf16, DType::f16, DType::f32, DType::q8_0x8, DType::q4_0x8}) {
        SCOPED_TRACE(dtype_name(w_type));
        const DType type = ops::is_tiled(w_type) ? DType::bf16 : w_type;
        std::vector<float> x_values = noise(tokens * k), bias_values = noise(n),
                           zero(static_cast<std::size_t>(tokens * n), 0.0f);
        const Tensor x = upload(type, {tokens, k}, x_values);
        const Tensor bias = upload(DType::f32, {n}, bias_values);
        const Tensor sums = upload(DType::f32, {tokens, n}, zero);
        const Weights w = weights(w_type, n, k, type);
        const Tensor out = poisoned(type, {tokens, n});
        const GemmShape plain{n, k, w_type, type, type, true};
        const GemmShape summed{n, k, w_type, type, DType::f32, false};
        give_scratch(plain);
        gemm_prepare(ctx_, plain);
        gemm_prepare(ctx_, summed);
        stream_->synchronize();
        const std::uint64_t free = device()->free_bytes;
        const auto body = [&] {
            gemm(ctx_, out, x, w.w, bias);
            gemm(ctx_, sums, x, w.w, {}, sums);
        };
        {
            const Graph graph = Graph::capture(*stream_, body);
            graph.launch(*stream_);
            graph.launch(*stream_);
            stream_->synchronize();
        }
        const Bytes captured = bits(out), captured_sums = bits(sums);
        stream_->fill(out.data, 0xff, out.bytes());
        stream_->fill(sums.data, 0, sums.bytes());
        body();
        body();
        EXPECT_EQ(captured, bits(out));
        EXPECT_EQ(captured_sums, bits(sums));
        for (std::int64_t some = 1; some <= tokens; some += 37) {
            gemm(ctx_, out.slice_rows(0, some), x.slice_rows(0, some), w.w, bias);
        }
        stream_->synchronize();
        // The driver may keep memory for a graph; a workspace would be larger than this slack.
        EXPECT_GE(device()->free_bytes + (8 << 20), free);
        EXPECT_TRUE(std::isfinite(download(out)[0]));
    }
}

// A fallback to our own kernels is correct but slow, so no other test would notice it.
TEST_F(GemmTest, TheLibraryServesTheLayersOfModels) {
    if (!cublaslt::available()) GTEST_SKIP() << cublaslt::about();
    if (device()->sm < 80) GTEST_SKIP() << "this GPU has no bf16";
    for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::q8_0x8, DType::q4_0x8}) {
        const DType compute = ops::is_tiled(type) ? DType::bf16 : type;
        for (const bool bias : {false, true}) {
            for (const DType out : {compute, DType::f32}) {
                for (const auto& [n, k] : {std::pair{12288, 4096}, {4096, 11008}, {2304, 768}}) {
                    const GemmShape shape{n, k, type, compute, out, bias};
                    EXPECT_TRUE(gemm_uses_library(shape))
                        << dtype_name(type) << " -> " << dtype_name(out) << " n " << n << " k " << k
                        << (bias ? " bias" : "");
                    if (bias || out != compute || n != 12288) continue;
                    std::printf("%s: %s\n", dtype_name(type), gemm_about(shape).c_str());
                }
            }
        }
    }
}

// The tile for 2048 tokens would leave most multiprocessors idle. GemmRows compares the bits.
TEST_F(GemmTest, FewTokensHaveAnAlgorithmOfTheirOwn) {
    const GemmShape shape{4096, 4096, DType::bf16, DType::bf16, DType::bf16, false};
    if (!gemm_uses_library(shape)) GTEST_SKIP() << gemm_about(shape);
    give_scratch(shape);
    gemm_prepare(ctx_, shape);
    stream_->synchronize();
    EXPECT_NE(gemm_about(shape, 64), gemm_about(shape)) << gemm_about(shape);
    EXPECT_EQ(gemm_about(shape, 64), gemm_about(shape, 1));
    EXPECT_EQ(gemm_about(shape, 65), gemm_about(shape, 128));
    EXPECT_EQ(gemm_about(shape, 1025), gemm_about(shape));
}

TEST_F(GemmTest, TheTimelineSeesTheProductAndTheLedgerItsWork) {
    const std::int64_t tokens = 512, n = 2048, k = 1024;
    std::vector<float> x_values = noise(tokens * k);
    const Tensor x = upload(DType::bf16, {tokens, k}, x_values);
    const Weights w = weights(DType::q8_0x8, n, k, DType::bf16);
    const Tensor out = poisoned(DType::bf16, {tokens, n});
    give_scratch({n, k, DType::q8_0x8, DType::bf16, DType::bf16, false});
    Timeline timeline(8);
    ctx_.timeline = &timeline;
    timeline.reset(*stream_);
    gemm(ctx_, out, x, w.w, {}, {}, {.kind = OpKind::lm_head, .name = "head"});
    const std::vector<Stage> stages = timeline.read(*stream_);
    ctx_.timeline = nullptr;
    ASSERT_EQ(stages.size(), 2u);
    EXPECT_STREQ(stages[0].name, "dequantize");
    EXPECT_STREQ(stages[1].name, "head");
    for (const Stage& stage : stages) {
        EXPECT_GT(stage.work.seconds, 1e-7);
        EXPECT_LT(stage.work.seconds, 0.1);
    }
    EXPECT_GE(stages[1].begin, stages[0].begin);
    EXPECT_EQ(ledger_.op(OpKind::lm_head).flops, 2ull * 512 * 2048 * 1024);
    EXPECT_EQ(ledger_.op(OpKind::lm_head).calls, 2u);
    EXPECT_EQ(ledger_.host_to_device().bytes, 0u);
}

TEST_F(GemmTest, WhatIsOutsideTheContractIsRefused) {
    std::vector<float> values(64 * 64, 1.0f);
    const Tensor x = upload(DType::bf16, {64, 64}, values);
    const Tensor out16 = poisoned(DType::bf16, {64, 64}), out32 = poisoned(DType::f32, {64, 64});
    give_scratch({64, 64, DType::bf16, DType::bf16, DType::bf16, false});
    EXPECT_THROW(gemm(ctx_, out16, x, x, {}, out32), ContractError);         // residual into bf16
    EXPECT_THROW(gemm(ctx_, out16.slice_rows(0, 63), x, x), ContractError);  // tokens
    EXPECT_THROW(gemm(ctx_, out32, x, x, out16), ContractError);             // bias
    EXPECT_THROW(gemm(ctx_, poisoned(DType::f16, {64, 64}), x, x), ContractError);
    EXPECT_THROW(gemm(ctx_, out32, x, Tensor(x.data, DType::q8_0, {64, 64})), ContractError);
    gemm(ctx_, out32.slice_rows(0, 0), x.slice_rows(0, 0), x);  // no tokens: nothing to do
    ctx_.scratch = ctx_.scratch.first(1024);
    EXPECT_THROW(gemm(ctx_, out32, x, x), ContractError);
}

// ---- expanding quantised weights ----------------------------------------------------------------

TEST_F(GemmTest, DequantisesAsTheHostDoes) {
    constexpr std::int64_t kSizes[][2] = {{1, 32},   {8, 64},  {8, 128},    {9, 96},
                                          {17, 320}, {3, 160}, {257, 4096}, {40, 256}};
    for (const DType type : {DType::q8_0x8, DType::q4_0x8}) {
        for (const auto& [n, k] : kSizes) {
            for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
                SCOPED_TRACE(std::string(dtype_name(type)) + " -> " + dtype_name(to) + " " +
                             std::to_string(n) + " x " + std::to_string(k));
                const Weights w = weights(type, n, k, to);
                const Tensor all = poisoned(to, {n + 1, k});
                gemm_dequantize(ctx_, all.slice_rows(0, n), w.w);
                const std::vector<float> got = download(all.slice_rows(0, n));
                for (std::size_t i = 0; i < got.size(); ++i) {
                    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]),
                              std::bit_cast<std::uint32_t>(w.values[i]))
                        << i << ": " << got[i] << " is not " << w.values[i];
                }
                for (const std::byte b : bits(all.slice_rows(n, 1))) {
                    ASSERT_EQ(b, std::byte{0xff}) << "written behind the end";
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
