#include "ops/linear/linear_train_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda::linear_train_cuda_test {
namespace {

struct Size {
    std::int64_t tokens, n, k, padded;  // padded: columns per row of out and dy
};

// A sum of `terms` products with this sum of squares, as gemm_cuda_test.cpp derives it: errors of
// single steps add up like a random walk, and tensor cores truncate where FMA rounds.
double tolerance(double squares, std::int64_t terms) {
    return 8 * 0x1p-22 * std::sqrt(squares * static_cast<double>(terms)) + 1e-30;
}

class LinearTrainTest : public GpuTest {
  protected:
    std::vector<float> noise(std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& v : values) {
            state_ = state_ * 6364136223846793005u + 1442695040888963407u;
            v = static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
        }
        return values;
    }
    void give_scratch(std::int64_t n) {
        const std::size_t bytes = linear_train_scratch_bytes(n);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }
    // Checks some elements of got [rows, cols], in rows of `stride`: before + the sum over `terms`
    // of left(row, i) * right(i, col).
    template <typename Left, typename Right, typename Before>
    void compare(const std::vector<float>& got, std::int64_t rows, std::int64_t cols,
                 std::int64_t stride, std::int64_t terms, DType type, Left&& left, Right&& right,
                 Before&& before) {
        std::uniform_int_distribution<std::int64_t> any_row(0, rows - 1), any_col(0, cols - 1);
        const std::int64_t most = std::min<std::int64_t>(rows * cols, 600);
        for (std::int64_t s = 0; s < most; ++s) {
            const bool all = rows * cols <= most;
            const std::int64_t row = all ? s / cols : s == 0 ? rows - 1 : any_row(random_);
            const std::int64_t col = all ? s % cols : s == 0 ? cols - 1 : any_col(random_);
            double sum = 0, squares = 0;
            for (std::int64_t i = 0; i < terms; ++i) {
                const double term = double{left(row, i)} * double{right(i, col)};
                sum += term;
                squares += term * term;
            }
            const double was = before(row, col), want = sum + was;
            double slack = tolerance(squares, terms);
            // With bf16 output the library may round the sum, and again after adding to it.
            slack += (4 * 0x1p-24 + epsilon(type)) * (std::abs(want) + slack + std::abs(was));
            if (was != 0) slack += epsilon(type) * std::abs(sum);
            ASSERT_NEAR(got[static_cast<std::size_t>(row * stride + col)], want, slack)
                << "row " << row << " column " << col;
        }
    }
    std::uint64_t state_ = 11;
};

std::vector<Size> sizes() {
    return {{64, 64, 64, 64},       {1, 8, 8, 8},          {300, 257, 96, 264},
            {65, 24, 35, 24},       {130, 130, 7, 131},    {1000, 768, 256, 768},
            {513, 1000, 320, 1000}, {2048, 128, 512, 128}, {96, 5003, 64, 5008}};
}

TEST_F(LinearTrainTest, MatchesF64) {
    for (const Size& size : sizes()) {
        const std::int64_t tokens = size.tokens, n = size.n, k = size.k, padded = size.padded;
        for (const bool own : {false, true}) {
            SCOPED_TRACE("tokens " + std::to_string(tokens) + " n " + std::to_string(n) + " k " +
                         std::to_string(k) + " padded " + std::to_string(padded) +
                         (own ? " own" : " library"));
            memory_.reset();
            give_scratch(n);
            const TrainGemmOptions options{OpKind::linear, own};
            std::vector<float> xs = noise(tokens * k), ws = noise(n * k),
                               ds = noise(tokens * padded), bs = noise(n),
                               rs = noise(tokens * padded), gs = noise(n * k), gbs = noise(n),
                               dxs = noise(tokens * k);
            for (std::int64_t t = 0; t < tokens; ++t) {  // NaN where nothing must be read
                for (std::int64_t i = n; i < padded; ++i) {
                    ds[static_cast<std::size_t>(t * padded + i)] = NAN;
                }
            }
            const Tensor x = upload(DType::bf16, {tokens, k}, xs);
            const Tensor w = upload(DType::bf16, {n, k}, ws);
            const Tensor dy = upload(DType::bf16, {tokens, padded}, ds);
            const Tensor bias = upload(DType::f32, {n}, bs);
            const Tensor residual = upload(DType::f32, {tokens, padded}, rs);
            const Tensor dw = upload(DType::f32, {n, k}, gs);
            const Tensor dbias = upload(DType::f32, {n}, gbs);
            const auto at = [](const std::vector<float>& v, std::int64_t stride) {
                return [&v, stride](std::int64_t row, std::int64_t col) {
                    return v[static_cast<std::size_t>(row * stride + col)];
                };
            };
            const auto none = [](std::int64_t, std::int64_t) { return 0.0; };
            const auto x_at = at(xs, k);
            const auto w_at = at(ws, k);
            const auto d_at = at(ds, padded);
            const auto w_transposed = [&](std::int64_t i, std::int64_t col) {
                return w_at(col, i);
            };
            const auto d_transposed = [&](std::int64_t row, std::int64_t i) {
                return d_at(i, row);
            };

            for (const DType type : {DType::bf16, DType::f32}) {
                for (const bool with_bias : {false, true}) {
                    SCOPED_TRACE(std::string("out ") + dtype_name(type) +
                                 (with_bias ? " bias" : ""));
                    const bool add = type == DType::f32 && with_bias;
                    const Tensor all = poisoned(type, {tokens + 1, padded});
                    const Tensor out = all.slice_rows(0, tokens);
                    if (add) stream_->on_device(out.data, residual.data, out.bytes());
                    linear_forward(ctx_, out, x, w, with_bias ? bias : Tensor{},
                                   add ? out : Tensor{}, options);
                    const std::vector<float> got = download(all);
                    compare(got, tokens, n, padded, k, type, x_at, w_transposed,
                            [&](std::int64_t row, std::int64_t col) {
                                const float b = bs[static_cast<std::size_t>(col)];
                                double was = 0;
                                if (with_bias) {
                                    was += type == DType::f32 ? b : bf16_to_f32(f32_to_bf16(b));
                                }
                                if (add) was += rs[static_cast<std::size_t>(row * padded + col)];
                                return was;
                            });
                    if (HasFatalFailure()) return;
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const auto row = static_cast<std::int64_t>(i) / padded;
                        const bool mine = row < tokens && static_cast<std::int64_t>(i) % padded < n;
                        if (mine) {
                            ASSERT_TRUE(std::isfinite(got[i])) << i;
                        } else if (!add || row == tokens) {
                            ASSERT_TRUE(std::isnan(got[i])) << "written beside: " << i;
                        } else {
                            ASSERT_EQ(got[i], rs[i]) << "written beside: " << i;
                        }
                    }
                }
            }

            const Tensor dx = poisoned(DType::bf16, {tokens, k});
            linear_backward_input(ctx_, dx, dy, w, false, options);
            compare(download(dx), tokens, k, k, n, DType::bf16, d_at, w_at, none);
            if (HasFatalFailure()) return;
            const Tensor more = upload(DType::f32, {tokens, k}, dxs);
            linear_backward_input(ctx_, more, dy, w, true, options);
            compare(download(more), tokens, k, k, n, DType::f32, d_at, w_at, at(dxs, k));
            if (HasFatalFailure()) return;

            linear_backward_weight(ctx_, dw, dbias, dy, x, options);
            compare(download(dw), n, k, k, tokens, DType::f32, d_transposed, x_at, at(gs, k));
            if (HasFatalFailure()) return;
            const std::vector<float> db = download(dbias);
            for (std::int64_t i = 0; i < n; ++i) {
                double want = gbs[static_cast<std::size_t>(i)], magnitude = std::abs(want);
                for (std::int64_t t = 0; t < tokens; ++t) {
                    want += double{d_at(t, i)};
                    magnitude += std::abs(double{d_at(t, i)});
                }
                // At most tokens / 64 terms in a chain, then the parts.
                const double roundoffs = static_cast<double>(tokens) / 64 + 48;
                ASSERT_NEAR(db[static_cast<std::size_t>(i)], want, 0x1p-24 * roundoffs * magnitude)
                    << "bias " << i;
            }
        }
    }
}

// Shapes of GPT-2 and of its head: the same bits every time, and only finite values.
TEST_F(LinearTrainTest, SameBitsEveryTime) {
    for (const Size& size : {Size{4096, 768, 768, 768}, Size{4096, 3072, 768, 3072},
                             Size{4096, 768, 3072, 768}, Size{2048, 50257, 768, 50304}}) {
        const std::int64_t tokens = size.tokens, n = size.n, k = size.k, padded = size.padded;
        SCOPED_TRACE(n);
        memory_.reset();
        give_scratch(n);
        std::vector<float> xs = noise(tokens * k), ws = noise(n * k), ds = noise(tokens * padded);
        const Tensor x = upload(DType::bf16, {tokens, k}, xs);
        const Tensor w = upload(DType::bf16, {n, k}, ws);
        const Tensor dy = upload(DType::bf16, {tokens, padded}, ds);
        const Tensor dw = memory_.tensor(DType::f32, {n, k});
        const Tensor dbias = memory_.tensor(DType::f32, {n});
        const Tensor dx = poisoned(DType::bf16, {tokens, k});
        std::vector<float> first[3];
        for (int i = 0; i < 3; ++i) {
            stream_->fill(dw.data, 0, dw.bytes());
            stream_->fill(dbias.data, 0, dbias.bytes());
            linear_backward_weight(ctx_, dw, dbias, dy, x);
            linear_backward_input(ctx_, dx, dy, w);
            const std::vector<float> got[3] = {download(dw), download(dbias), download(dx)};
            for (int j = 0; j < 3; ++j) {
                if (i == 0) {
                    for (const float v : got[j]) ASSERT_TRUE(std::isfinite(v)) << j;
                    first[j] = got[j];
                } else {
                    ASSERT_TRUE(first[j] == got[j]) << "run " << i << " of " << j;
                }
            }
        }
    }
}

// Timing algorithms changes no bit, neither during the trial nor after it.
TEST_F(LinearTrainTest, TheFastestHasTheBitsOfTheFirst) {
    for (const Size& size :
         {Size{2048, 768, 768, 768}, Size{2000, 2304, 768, 2304}, Size{1024, 5003, 256, 5056}}) {
        const std::int64_t tokens = size.tokens, n = size.n, k = size.k, padded = size.padded;
        SCOPED_TRACE(n);
        memory_.reset();
        give_scratch(n);
        std::vector<float> xs = noise(tokens * k), ws = noise(n * k), ds = noise(tokens * padded),
                           bs = noise(n), rs = noise(tokens * padded);
        const Tensor x = upload(DType::bf16, {tokens, k}, xs);
        const Tensor w = upload(DType::bf16, {n, k}, ws);
        const Tensor dy = upload(DType::bf16, {tokens, padded}, ds);
        const Tensor bias = upload(DType::f32, {n}, bs);
        const Tensor residual = upload(DType::f32, {tokens, padded}, rs);
        std::vector<std::vector<float>> first;
        for (int i = 0; i < 3; ++i) {
            const TrainGemmOptions options{.timed = i > 0};
            const Tensor out = poisoned(DType::bf16, {tokens, padded});
            const Tensor sum = poisoned(DType::f32, {tokens, padded});
            const Tensor dx = poisoned(DType::bf16, {tokens, k});
            std::vector<float> zeros(static_cast<std::size_t>(n * k));
            const Tensor dw = upload(DType::f32, {n, k}, zeros);
            linear_forward(ctx_, out, x, w, bias, {}, options);
            linear_forward(ctx_, sum, x, w, bias, residual, options);
            linear_backward_input(ctx_, dx, dy, w, false, options);
            linear_backward_weight(ctx_, dw, {}, dy, x, options);
            std::vector<std::vector<float>> got = {download(out), download(sum), download(dx),
                                                   download(dw)};
            for (std::size_t j = 0; j < got.size(); ++j) {
                for (float& v : got[j]) v = std::isnan(v) ? -1e30f : v;  // not written
                ASSERT_TRUE(i == 0 || got[j] == first[j]) << "run " << i << " product " << j;
            }
            if (i == 0) first = got;
        }
    }
}

TEST_F(LinearTrainTest, Contract) {
    give_scratch(64);
    const Tensor x = poisoned(DType::bf16, {8, 32}), w = poisoned(DType::bf16, {16, 32});
    const Tensor out = poisoned(DType::bf16, {8, 16}), f = poisoned(DType::f32, {16, 32});
    EXPECT_THROW(linear_forward(ctx_, out, w, x), ContractError);
    EXPECT_THROW(linear_forward(ctx_, out, x, f), ContractError);
    EXPECT_THROW(linear_forward(ctx_, out, x, w, out), ContractError);
    EXPECT_THROW(linear_forward(ctx_, out, x, w, {}, f), ContractError);
    EXPECT_THROW(linear_backward_input(ctx_, x, poisoned(DType::bf16, {8, 8}), w), ContractError);
    EXPECT_THROW(linear_backward_weight(ctx_, w, {}, out, x), ContractError);
    EXPECT_THROW(linear_backward_weight(ctx_, f, x, out, x), ContractError);
    ctx_.scratch = ctx_.scratch.first(1024);
    EXPECT_THROW(linear_forward(ctx_, out, x, w), ContractError);
}

}  // namespace
}  // namespace mr::cuda::linear_train_cuda_test
