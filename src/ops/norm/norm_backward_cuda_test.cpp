#include "ops/norm/norm_backward_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda::norm_backward_cuda_test {
namespace {

using ops::NormKind;
constexpr NormKind kKinds[] = {NormKind::rms, NormKind::layer};

class NormBackwardTest : public GpuTest {
  protected:
    void give_scratch(std::int64_t cols) {
        const std::size_t bytes = norm_backward_scratch_bytes(cols);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }
};

struct Case {
    std::int64_t rows, cols;
    DType dy;
};

TEST_F(NormBackwardTest, MatchesF64) {
    std::vector<Case> cases;
    for (const std::int64_t cols :
         {4, 64, 172, 768, 772, 1000, 1024, 1028, 2048, 2560, 4096, 4100, 8192, 8200}) {
        cases.push_back({7, cols, DType::bf16});
    }
    for (const std::int64_t cols : {1, 7, 255, 1030}) {
        cases.push_back({5, cols, DType::bf16});
        cases.push_back({5, cols, DType::f32});
    }
    for (const std::int64_t cols : {7, 64, 772, 1024, 2048, 2560, 8192, 8200}) {
        cases.push_back({cols == 2560 ? 1201 : 7, cols, DType::f16});
    }
    cases.push_back({1, 768, DType::bf16});
    cases.push_back({3000, 64, DType::bf16});    // several rows per warp
    cases.push_back({1201, 1028, DType::bf16});  // several rows per block
    cases.push_back({1201, 30, DType::f32});
    for (const std::int64_t cols : {8, 64, 760, 768, 776, 1024, 1032, 2048, 2056}) {
        cases.push_back({cols == 768 ? 3500 : 1025, cols, DType::bf16});  // for many rows
    }
    for (const Case& c : cases) {
        for (const NormKind kind : kKinds) {
            for (int variant = 0; variant < 3; ++variant) {  // residual: none, separate, in place
                if (c.rows > 100 && variant == 1) continue;
                SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.cols) +
                             (kind == NormKind::rms ? " rms " : " layer ") + dtype_name(c.dy) +
                             " variant " + std::to_string(variant));
                memory_.reset();
                give_scratch(c.cols);
                const auto rows = static_cast<std::size_t>(c.rows),
                           cols = static_cast<std::size_t>(c.cols);
                const bool layer = kind == NormKind::layer;
                std::vector<float> xs = normal(rows * cols), ds = normal(rows * cols),
                                   rs = normal(rows * cols), ws = normal(cols), dws = normal(cols),
                                   dbs = normal(cols), dss = normal(cols);
                for (float& x : xs) x += 0.5f;
                NormBackward pass;
                pass.kind = kind;
                pass.x = upload(DType::f32, {c.rows, c.cols}, xs);
                pass.dy = upload(c.dy, {c.rows, c.cols}, ds);
                pass.weight = upload(DType::f32, {c.cols}, ws);
                pass.dweight = upload(DType::f32, {c.cols}, dws);
                if (layer) pass.dbias = upload(DType::f32, {c.cols}, dbs);
                if (variant != 1) pass.dsum = upload(DType::f32, {c.cols}, dss);
                if (variant > 0) pass.residual = upload(DType::f32, {c.rows, c.cols}, rs);
                if (variant != 1) pass.copy = poisoned(DType::bf16, {c.rows, c.cols});
                pass.dx = variant == 2 ? pass.residual : poisoned(DType::f32, {c.rows, c.cols});
                const bool summed = norm_backward(ctx_, pass);
                const std::vector<float> dx = download(pass.dx);

                std::vector<double> dweight(dws.begin(), dws.end()), dbias(dbs.begin(), dbs.end());
                std::vector<double> size(cols), size_b(cols);
                // A thread adds at most cols / 32 terms and the tree has 8 levels, in the forward's
                // statistics too; a few roundoffs for each term.
                const double chain = static_cast<double>(cols) / 32 + 32;
                const double unit = 0x1p-24 * chain;
                for (std::size_t r = 0; r < rows; ++r) {
                    const float* x = xs.data() + r * cols;
                    const float* dy = ds.data() + r * cols;
                    double mean = 0, squares = 0, sum_g = 0, sum_gh = 0, size_g = 0, size_gh = 0;
                    const auto n = static_cast<double>(cols);
                    if (layer) {
                        for (std::size_t i = 0; i < cols; ++i) mean += x[i] / n;
                    }
                    for (std::size_t i = 0; i < cols; ++i) {
                        squares += (x[i] - mean) * (x[i] - mean);
                    }
                    const double rstd = 1 / std::sqrt(squares / n + double{pass.eps});
                    // A single column has no spread: only the mean's error remains, which is large.
                    const double spread = unit * std::max(1.0, rstd);
                    for (std::size_t i = 0; i < cols; ++i) {
                        const double h = (x[i] - mean) * rstd, g = double{dy[i]} * double{ws[i]};
                        sum_g += g / n;
                        sum_gh += g * h / n;
                        size_g += std::abs(g) / n;
                        size_gh += std::abs(g * h) / n;
                        dweight[i] += dy[i] * h;
                        dbias[i] += double{dy[i]};
                        size[i] += std::abs(double{dy[i]}) * (std::abs(h) + 1);
                        size_b[i] += std::abs(double{dy[i]});
                    }
                    for (std::size_t i = 0; i < cols; ++i) {
                        const double h = (x[i] - mean) * rstd, g = double{dy[i]} * double{ws[i]};
                        const double residual = variant > 0 ? double{rs[r * cols + i]} : 0.0;
                        const double want =
                            residual + rstd * (g - (layer ? sum_g : 0) - h * sum_gh);
                        const double error =
                            spread * (std::abs(residual) +
                                      rstd * (std::abs(g) + size_g + (std::abs(h) + 1) * size_gh +
                                              std::abs(h) * size_g));
                        ASSERT_NEAR(dx[r * cols + i], want, error) << "row " << r << " col " << i;
                    }
                }
                if (pass.copy) {
                    const std::vector<float> copy = download(pass.copy);
                    for (std::size_t i = 0; i < copy.size(); ++i) {
                        ASSERT_EQ(copy[i], bf16_to_f32(f32_to_bf16(dx[i]))) << i;
                    }
                }
                if (pass.dsum) {
                    const std::vector<float> sums = download(pass.dsum);
                    for (std::size_t i = 0; i < cols; ++i) {
                        double sum = dss[i], magnitude = std::abs(sum);
                        for (std::size_t r = 0; summed && r < rows; ++r) {
                            sum += double{dx[r * cols + i]};
                            magnitude += std::abs(double{dx[r * cols + i]});
                        }
                        // The rows of a group in order, then groups, parts and their tree.
                        const double chain_of_rows = static_cast<double>(rows) / 264 + 64;
                        ASSERT_NEAR(sums[i], sum, summed ? 0x1p-24 * chain_of_rows * magnitude : 0)
                            << i;
                    }
                } else {
                    ASSERT_TRUE(summed) << "nothing is left to do";
                }
                if (cols == 1 && layer) continue;  // as above
                const double over_rows = unit + 0x1p-24 * (static_cast<double>(rows) / 528 + 64);
                const std::vector<float> dw = download(pass.dweight);
                for (std::size_t i = 0; i < cols; ++i) {
                    ASSERT_NEAR(dw[i], dweight[i], over_rows * (size[i] + std::abs(dws[i]))) << i;
                }
                if (!layer) continue;
                const std::vector<float> db = download(pass.dbias);
                for (std::size_t i = 0; i < cols; ++i) {
                    ASSERT_NEAR(db[i], dbias[i], over_rows * (size_b[i] + std::abs(dbs[i]))) << i;
                }
            }
        }
    }
}

// The same call gives the same bits; a row of dx has the same bits with any neighbours; and nothing
// is written past the end.
TEST_F(NormBackwardTest, Bits) {
    for (const std::int64_t cols : {64, 768, 1024, 2048, 2560, 8192, 1030}) {
        SCOPED_TRACE(cols);
        memory_.reset();
        give_scratch(cols);
        constexpr std::int64_t kRows = 1100, kSome = 3, kFirst = 1024;
        const auto count = static_cast<std::size_t>(kRows * cols);
        std::vector<float> xs = normal(count), ds = normal(count),
                           ws = normal(static_cast<std::size_t>(cols));
        NormBackward pass;
        pass.kind = NormKind::layer;
        pass.x = upload(DType::f32, {kRows, cols}, xs);
        pass.dy = upload(DType::bf16, {kRows, cols}, ds);
        pass.weight = upload(DType::f32, {cols}, ws);
        std::vector<std::vector<float>> got;
        for (int i = 0; i < 2; ++i) {
            std::vector<float> zeros(static_cast<std::size_t>(cols));
            pass.dweight = upload(DType::f32, {cols}, zeros);
            pass.dbias = upload(DType::f32, {cols}, zeros);
            const Tensor room = poisoned(DType::f32, {kRows + 1, cols});
            pass.dx = room.slice_rows(0, kRows);
            norm_backward(ctx_, pass);
            for (const float v : download(room.slice_rows(kRows, 1))) ASSERT_TRUE(std::isnan(v));
            got.push_back(download(pass.dx));
            const std::vector<float> dw = download(pass.dweight), db = download(pass.dbias);
            got.back().insert(got.back().end(), dw.begin(), dw.end());
            got.back().insert(got.back().end(), db.begin(), db.end());
        }
        ASSERT_EQ(got[0], got[1]);
        pass.x = pass.x.slice_rows(kFirst, kSome);
        pass.dy = pass.dy.slice_rows(kFirst, kSome);
        pass.dx = poisoned(DType::f32, {kSome, cols});
        norm_backward(ctx_, pass);
        const std::vector<float> some = download(pass.dx);
        for (std::size_t i = 0; i < some.size(); ++i) {
            ASSERT_EQ(some[i], got[0][static_cast<std::size_t>(kFirst * cols) + i]) << i;
        }
    }
}

TEST_F(NormBackwardTest, Contract) {
    give_scratch(64);
    NormBackward pass;
    pass.x = pass.dx = poisoned(DType::f32, {3, 64});
    pass.dy = poisoned(DType::bf16, {3, 64});
    pass.weight = pass.dweight = poisoned(DType::f32, {64});
    NormBackward wrong = pass;
    wrong.dy = poisoned(DType::bf16, {3, 32});
    EXPECT_THROW(norm_backward(ctx_, wrong), ContractError);
    wrong = pass;
    wrong.copy = pass.x;
    EXPECT_THROW(norm_backward(ctx_, wrong), ContractError);
    wrong = pass;
    wrong.weight = {};
    EXPECT_THROW(norm_backward(ctx_, wrong), ContractError);
    ctx_.scratch = {};
    EXPECT_THROW(norm_backward(ctx_, pass), ContractError);
}

// Rows of dy's own type give the results of f32 rows with the same values, rounded.
TEST_F(NormBackwardTest, RowsOfOneTypeAreThoseOfF32) {
    for (const DType type : {DType::f16, DType::bf16}) {
        for (const std::int64_t cols : {7, 64, 1024, 2048, 2560, 8192, 8200}) {
            for (const bool residual : {false, true}) {
                SCOPED_TRACE(std::string(dtype_name(type)) + " " + std::to_string(cols));
                memory_.reset();
                give_scratch(cols);
                constexpr std::int64_t kRows = 61;  // too few for the kernel for many rows
                const auto count = static_cast<std::size_t>(kRows * cols);
                const Shape shape{kRows, cols};
                // upload() rounds its argument.
                std::vector<float> xs = normal(count), ds = normal(count), rs = normal(count),
                                   ws = normal(static_cast<std::size_t>(cols));
                NormBackward narrow;
                narrow.kind = NormKind::layer;
                narrow.x = upload(type, shape, xs);
                narrow.dy = upload(type, shape, ds);
                if (residual) narrow.residual = upload(type, shape, rs);
                narrow.weight = upload(DType::f32, {cols}, ws);
                NormBackward wide = narrow;
                wide.x = upload(DType::f32, shape, xs);
                if (residual) wide.residual = upload(DType::f32, shape, rs);
                for (NormBackward* pass : {&narrow, &wide}) {
                    pass->dx = poisoned(pass->x.dtype, shape);
                    pass->dweight = memory_.tensor(DType::f32, {cols});
                    pass->dbias = memory_.tensor(DType::f32, {cols});
                    for (const Tensor& sum : {pass->dweight, pass->dbias}) {
                        stream_->fill(sum.data, 0, sum.bytes());
                    }
                    EXPECT_TRUE(norm_backward(ctx_, *pass));
                }
                std::vector<float> want = download(wide.dx);
                for (float& value : want) {
                    value = type == DType::f16 ? f16_to_f32(f32_to_f16(value))
                                               : bf16_to_f32(f32_to_bf16(value));
                }
                EXPECT_EQ(download(narrow.dx), want);
                EXPECT_EQ(download(narrow.dweight), download(wide.dweight));
                EXPECT_EQ(download(narrow.dbias), download(wide.dbias));
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda::norm_backward_cuda_test
