// Norms on the GPU against f64 on the host, and their contract.
#include "ops/norm/norm_testing.cuh"

namespace mr::cuda::norms {
namespace {

TEST_F(NormTest, MatchesF64) {
    struct Case {
        std::int64_t rows;
        DType x, out;
    };
    std::vector<Case> cases;
    for (const DType x : kTypes) {
        for (const DType out : kTypes) {
            if (x == out || x == DType::f32 || out == DType::f32) cases.push_back({3, x, out});
        }
    }
    for (const std::int64_t rows : {1, 33, 257}) {
        for (const DType type : kTypes) cases.push_back({rows, type, type});
        cases.push_back({rows, DType::f32, DType::bf16});
    }
    for (const std::int64_t cols : kCols) {
        for (const Case& c : cases) {
            for (const float mean : {0.0f, 100.0f}) {  // must not swamp the variance
                if (mean != 0 && c.rows != 3) continue;
                if (c.rows > 33 && cols > 256) continue;  // one block per row, as with fewer rows
                memory_.reset();
                const Both x = make(c.x, {c.rows, cols}, 1, mean);
                const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
                for (const NormKind kind : kKinds) {
                    const bool layer = kind == NormKind::layer;
                    const Tensor out = poisoned(c.out, {c.rows, cols});
                    if (layer) {
                        layernorm(ctx_, out, x.tensor, w.tensor, b.tensor, kEps);
                    } else {
                        rmsnorm(ctx_, out, x.tensor, w.tensor, kEps);
                    }
                    const std::vector<float> got = download(out);
                    for (std::int64_t r = 0; r < c.rows; ++r) {
                        const auto from = x.values.begin() + r * cols;
                        expect_normed(kind, got.data() + r * cols, c.out, {from, from + cols},
                                      w.values.data(), layer ? b.values.data() : nullptr,
                                      label(kind, c.rows, cols, c.x, c.out));
                        if (HasFatalFailure()) return;
                    }
                }
            }
        }
    }
}

// 2048 rows of f16 or bf16 use bulk copies: one, two or four warps per row. All others, and columns
// that are not multiples of eight, too few or too many, use the kernel for more than 1024 rows.
// Only some rows, the last ones included, are compared with f64; the sum is not requested.
TEST_F(NormTest, ManyRowsMatchF64) {
    struct Case {
        std::int64_t rows, cols;
        DType x, residual, out;
    };
    std::vector<Case> cases;
    for (const std::int64_t cols :
         {8, 1016, 1024, 1028, 2552, 2560, 2568, 4096, 5120, 5128, 8192}) {
        for (const DType type : {DType::f16, DType::bf16}) {
            cases.push_back({2051, cols, type, type, type});
        }
    }
    for (const std::int64_t cols : {264, 2552, 4096}) {
        cases.push_back({1030, cols, DType::f32, DType::f32, DType::f32});
        cases.push_back({1030, cols, DType::bf16, DType::bf16, DType::bf16});
        cases.push_back({2049, cols, DType::bf16, DType::f32, DType::bf16});
        cases.push_back({2050, cols, DType::f32, DType::f32, DType::bf16});
        cases.push_back({2051, cols, DType::f16, DType::f16, DType::f32});
        cases.push_back({2052, cols, DType::bf16, DType::bf16, DType::f32});
    }
    constexpr std::int64_t kSome = 41;  // distinct rows
    for (const Case& c : cases) {
        memory_.reset();
        const Both some_x = make(c.x, {kSome, c.cols}), some_r = make(c.residual, {kSome, c.cols});
        const Both w = make(DType::f32, {c.cols}), b = make(DType::f32, {c.cols});
        const Tensor x = repeated(some_x.tensor, c.rows), r = repeated(some_r.tensor, c.rows);
        for (const NormKind kind : kKinds) {
            const bool biased = kind == NormKind::layer;
            const Tensor out = poisoned(c.out, {c.rows, c.cols});
            norm_residual(ctx_, out, {}, x, r, w.tensor, biased ? b.tensor : Tensor{}, kEps, kind);
            for (std::int64_t row = 0; row < c.rows; row += row < c.rows - 5 ? 409 : 1) {
                std::vector<double> s;
                const std::int64_t same = row % kSome * c.cols;
                for (std::int64_t i = same; i < same + c.cols; ++i) {
                    const auto at = static_cast<std::size_t>(i);
                    s.push_back(some_x.values[at] + some_r.values[at]);  // in f32, as in the kernel
                }
                const std::string where =
                    label(kind, c.rows, c.cols, c.x, c.out) + " row " + std::to_string(row);
                const std::vector<float> got = download(out.slice_rows(row, 1));
                expect_normed(kind, got.data(), c.out, s, w.values.data(),
                              biased ? b.values.data() : nullptr, where);
                if (HasFatalFailure()) return;
            }
            // Every row was written, with the bits of its equals.
            ASSERT_EQ(first_other_row(out, out.slice_rows(0, kSome)), -1)
                << label(kind, c.rows, c.cols, c.x, c.out);
        }
    }
}

// Sum, norm and second norm in one pass have the bits of separate ops.
TEST_F(NormTest, FusedIsTheSameAsItsParts) {
    constexpr std::int64_t kSome = 13;  // distinct rows
    for (const std::int64_t cols : {7, 172, 768, 2560, 5120, 8192, 11008}) {
        for (const std::int64_t rows : {3, 1100, 2100}) {
            if (rows > 3 && cols > 8192) continue;
            for (const DType type : kTypes) {
                for (const DType kept : {type, DType::f32}) {
                    for (const NormKind kind : kKinds) {
                        memory_.reset();
                        const Shape shape{rows, cols};
                        const Both some_x = make(type, {kSome, cols});
                        const Both some_r = make(kept, {kSome, cols}, 3);
                        const Both w = make(DType::f32, {cols}), w2 = make(DType::f32, {cols});
                        const Both b = make(DType::f32, {cols}), b2 = make(DType::f32, {cols});
                        const Tensor x = repeated(some_x.tensor, rows);
                        const Tensor r = repeated(some_r.tensor, rows);
                        const std::string where = label(kind, rows, cols, type, kept);
                        NormPass pass = pass_of(kind, poisoned(type, shape), x, w.tensor, b.tensor);
                        pass.residual = r;
                        pass.sum = poisoned(kept, shape);
                        pass.out2 = poisoned(type, shape);
                        pass.weight2 = w2.tensor;
                        pass.bias2 = b2.tensor;
                        norm(ctx_, pass);

                        std::vector<float> sum(some_x.values.size());
                        for (std::size_t i = 0; i < sum.size(); ++i) {
                            sum[i] = some_x.values[i] + some_r.values[i];
                        }
                        const Tensor want_sum = repeated(upload(kept, {kSome, cols}, sum), rows);
                        ASSERT_EQ(first_other_row(pass.sum, want_sum), -1) << where;
                        const Tensor one =
                            ran(pass_of(kind, poisoned(type, shape), want_sum, w.tensor, b.tensor));
                        ASSERT_EQ(first_other_row(pass.out, one), -1) << where;
                        const Tensor two = ran(
                            pass_of(kind, poisoned(type, shape), want_sum, w2.tensor, b2.tensor));
                        ASSERT_EQ(first_other_row(pass.out2, two), -1) << where;

                        // The sum may replace the residual.
                        NormPass over = pass;
                        over.sum = r;
                        over.out = poisoned(type, shape);
                        norm(ctx_, over);
                        ASSERT_EQ(first_other_row(over.sum, want_sum), -1) << where;
                        ASSERT_EQ(first_other_row(over.out, one), -1) << where;
                    }
                }
            }
        }
    }
}

TEST_F(NormTest, LedgerAndContract) {
    const Both x = make(DType::f16, {3, 8}), w = make(DType::f32, {8}), b = make(DType::f32, {8});
    const Both short_w = make(DType::f32, {7});
    const Tensor out = poisoned(DType::f32, {3, 8});
    ledger_ = {};
    rmsnorm(ctx_, out, x.tensor, w.tensor, kEps);
    const OpRecord& record = ledger_.op(OpKind::norm);
    EXPECT_EQ(record.calls, 1u);
    EXPECT_EQ(record.bytes_read, 48u + 32);
    EXPECT_EQ(record.bytes_written, 96u);
    EXPECT_EQ(record.flops, 4u * 24);
    EXPECT_THROW(rmsnorm(ctx_, out, x.tensor, short_w.tensor, kEps), ContractError);
    EXPECT_THROW(rmsnorm(ctx_, out, x.tensor, x.tensor, kEps), ContractError);
    EXPECT_THROW(rmsnorm(ctx_, poisoned(DType::f32, {8, 3}), x.tensor, w.tensor, kEps),
                 ContractError);
    EXPECT_THROW(rmsnorm(ctx_, poisoned(DType::bf16, {3, 8}), x.tensor, w.tensor, kEps),
                 ContractError);  // f16 to bf16
    EXPECT_THROW(layernorm(ctx_, out, x.tensor, {}, b.tensor, kEps), ContractError);
    EXPECT_THROW(norm_residual(ctx_, out, poisoned(DType::f32, {3, 8}), x.tensor, x.tensor,
                               w.tensor, {}, kEps, NormKind::rms),
                 ContractError);  // the sum must have the residual's type
    NormPass lone = pass_of(NormKind::rms, out, x.tensor, w.tensor, {});
    lone.out2 = poisoned(DType::f32, {3, 8});
    EXPECT_THROW(norm(ctx_, lone), ContractError);
}

}  // namespace
}  // namespace mr::cuda::norms
