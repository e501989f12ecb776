#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/cuda/testing.h"
#include "ops/norm/norm_cuda.h"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr NormKind kKinds[] = {NormKind::rms, NormKind::layer};
constexpr std::int64_t kCols[] = {1, 7, 64, 172, 255, 256, 2560, 4096, 11008};
constexpr float kEps = 1e-5f;
constexpr double kRoundoff = 0x1p-24;

// What the device has, on the host too.
struct Both {
    Tensor tensor;
    std::vector<float> values;
};

class NormTest : public GpuTest {
  protected:
    Both make(DType dtype, Shape shape, float deviation = 1, float mean = 0) {
        Both both{{}, normal(static_cast<std::size_t>(shape.count()), deviation)};
        for (float& v : both.values) v += mean;
        both.tensor = upload(dtype, shape, both.values);
        return both;
    }
    Tensor ran(const NormPass& pass) {
        norm(ctx_, pass);
        return pass.out;
    }
    NormPass pass_of(NormKind kind, Tensor out, Tensor x, Tensor weight, Tensor bias) {
        NormPass pass;
        pass.kind = kind;
        pass.eps = kEps;
        pass.x = x;
        pass.out = out;
        pass.weight = weight;
        pass.bias = bias;
        return pass;
    }
    std::vector<std::byte> bits(Tensor t) {
        return download(static_cast<const std::byte*>(t.data), t.bytes());
    }
};

std::string label(NormKind kind, std::int64_t rows, std::int64_t cols, DType x, DType out) {
    return std::string(kind == NormKind::rms ? "rms " : "layer ") + std::to_string(rows) + " x " +
           std::to_string(cols) + " " + dtype_name(x) + " -> " + dtype_name(out);
}

// Roundoffs of a sum over a row: a partial's chain has cols / 1024 chunks, a chunk two levels and
// the product, the tree eight levels; the mean's reciprocal and product two more.
double sum_roundoffs(std::int64_t cols) { return static_cast<double>(cols) / 1024 + 1 + 3 + 8 + 2; }

// One row against f64. The root halves its argument's relative error; rsqrtf errs by 2 ulp (4
// roundoffs), then three more operations; and the result is rounded to its type.
void expect_normed(NormKind kind, const float* out, DType out_type, const std::vector<double>& s,
                   const float* weight, const float* bias, const std::string& where) {
    const auto n = static_cast<double>(s.size());
    const bool layer = kind == NormKind::layer;
    double sum = 0, magnitude = 0, squares = 0;
    for (const double v : s) {
        sum += v;
        magnitude += std::abs(v);
    }
    const double mean = layer ? sum / n : 0;
    for (const double v : s) squares += (v - mean) * (v - mean);
    const double variance = squares / n + double{kEps};
    const double factor = 1 / std::sqrt(variance);
    const double chain = sum_roundoffs(static_cast<std::int64_t>(s.size()));
    // The mean's error moves every centred value; it enters the variance only squared, since the
    // centred values add up to 0.
    const double mean_error = layer ? chain * kRoundoff * magnitude / n : 0;
    const double relative =
        (0.5 * (chain + 2) + 4 + 3) * kRoundoff + mean_error * mean_error / variance;
    const double smallest = out_type == DType::f16 ? 0x1p-25 : 0;  // half a subnormal's step
    for (std::size_t i = 0; i < s.size(); ++i) {
        const double centred = s[i] - mean;
        const double b = bias ? double{bias[i]} : 0;
        const double want = centred * factor * double{weight[i]} + b;
        const double exact_error = std::abs(factor * double{weight[i]}) *
                                       (mean_error + relative * (std::abs(centred) + mean_error) +
                                        kRoundoff * std::abs(mean)) +
                                   2 * kRoundoff * (std::abs(want) + std::abs(b));
        const double error =
            exact_error + smallest +
            (out_type == DType::f32 ? 0 : epsilon(out_type) * (std::abs(want) + exact_error));
        ASSERT_NEAR(out[i], want, error) << where << " column " << i;
    }
}

TEST_F(NormTest, MatchesF64) {
    struct Case {
        std::int64_t rows;
        DType x, out;
    };
    std::vector<Case> cases;
    for (const DType x : kTypes) {
        for (const DType out : kTypes) cases.push_back({3, x, out});
    }
    for (const std::int64_t rows : {1, 33, 257}) {
        for (const DType type : kTypes) cases.push_back({rows, type, type});
        cases.push_back({rows, DType::f32, DType::bf16});
    }
    for (const std::int64_t cols : kCols) {
        for (const Case& c : cases) {
            for (const float mean : {0.0f, 100.0f}) {  // must not swallow the variance
                if (mean != 0 && c.rows != 3) continue;
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

// More than 1024 rows go another way: one, two or four warps a row, 16 bytes at a time where all is
// f16 or bf16, and back to the way of few rows where the columns are not in eights or too many.
// Only some rows are compared with f64; the odd row counts leave the last block's groups without
// rows.
TEST_F(NormTest, ManyRowsMatchF64) {
    struct Case {
        std::int64_t rows;
        DType x, residual, out;
    };
    for (const std::int64_t cols :
         {8, 172, 264, 1016, 1028, 1032, 2552, 2560, 2564, 4096, 5120, 5128}) {
        std::vector<Case> cases;
        for (const DType type : kTypes) cases.push_back({1030, type, type, type});
        if (cols == 264 || cols == 2552 || cols == 4096) {
            cases.push_back({1025, DType::bf16, DType::f32, DType::bf16});
            cases.push_back({1027, DType::f32, DType::f32, DType::bf16});
            cases.push_back({1031, DType::f16, DType::f16, DType::f32});
            cases.push_back({1029, DType::f16, DType::f16, DType::bf16});
        }
        for (const Case& c : cases) {
            memory_.reset();
            const Shape shape{c.rows, cols};
            const Both x = make(c.x, shape), r = make(c.residual, shape);
            const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
            for (const NormKind kind : kKinds) {
                const bool biased = kind == NormKind::layer;
                const Tensor out = poisoned(c.out, shape);
                norm_residual(ctx_, out, {}, x.tensor, r.tensor, w.tensor,
                              biased ? b.tensor : Tensor{}, kEps, kind);
                const std::vector<float> got = download(out);
                for (std::int64_t row = 0; row < c.rows; row += row < 1020 ? 103 : 1) {
                    std::vector<double> s;
                    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
                        const auto at = static_cast<std::size_t>(i);
                        s.push_back(x.values[at] + r.values[at]);  // f32, as the kernel adds
                    }
                    expect_normed(
                        kind, got.data() + row * cols, c.out, s, w.values.data(),
                        biased ? b.values.data() : nullptr,
                        label(kind, c.rows, cols, c.x, c.out) + " row " + std::to_string(row));
                    if (HasFatalFailure()) return;
                }
                for (const float v : got) ASSERT_FALSE(std::isnan(v));  // every row was written
            }
        }
    }
}

// So many rows that a block takes several after another, the last ones not all; whatever lies
// behind the rows stays as it is.
TEST_F(NormTest, ManyMoreRowsHaveTheBitsOfFew) {
    for (const std::int64_t cols : {512, 2552, 2560, 4096}) {
        for (const DType type : kTypes) {
            for (const NormKind kind : kKinds) {
                memory_.reset();
                const std::int64_t rows = 6011, part = 911;
                const Shape shape{rows, cols};
                // The same values again and again: 1000 rows of them, so that making them is quick.
                const Both some_x = make(type, {1000, cols}), some_r = make(type, {1000, cols}, 2);
                const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
                const Tensor x = poisoned(type, shape), r = poisoned(type, shape);
                for (std::int64_t row = 0; row < rows; row += 1000) {
                    const std::int64_t count = std::min<std::int64_t>(1000, rows - row);
                    const std::size_t bytes = x.slice_rows(0, count).bytes();
                    stream_->on_device(x.slice_rows(row, count).data, some_x.tensor.data, bytes);
                    stream_->on_device(r.slice_rows(row, count).data, some_r.tensor.data, bytes);
                }
                NormPass pass = pass_of(kind, {}, x, w.tensor, b.tensor);
                pass.residual = r;
                const Tensor room = poisoned(type, {rows + 1, cols});
                const Tensor sums = poisoned(type, {rows + 1, cols});
                const std::vector<std::byte> poison = bits(room.slice_rows(rows, 1));
                pass.out = room.slice_rows(0, rows);
                pass.sum = sums.slice_rows(0, rows);
                norm(ctx_, pass);
                const std::vector<std::byte> out = bits(pass.out), sum = bits(pass.sum);
                const std::string where = label(kind, rows, cols, type, type);
                EXPECT_EQ(bits(room.slice_rows(rows, 1)), poison) << where;
                EXPECT_EQ(bits(sums.slice_rows(rows, 1)), poison) << where;

                NormPass few = pass;  // 911 rows go the way of few
                few.x = some_x.tensor.slice_rows(0, part);
                few.residual = some_r.tensor.slice_rows(0, part);
                few.out = poisoned(type, {part, cols});
                few.sum = poisoned(type, {part, cols});
                norm(ctx_, few);
                const std::vector<std::byte> want = bits(few.out), want_sum = bits(few.sum);
                const std::size_t row_bytes = pass.out.row_bytes();
                for (std::int64_t row = 0; row < rows; ++row) {
                    if (row % 1000 >= part) continue;
                    const std::size_t at = static_cast<std::size_t>(row) * row_bytes;
                    const std::size_t as = static_cast<std::size_t>(row % 1000) * row_bytes;
                    ASSERT_EQ(std::memcmp(&out[at], &want[as], row_bytes), 0)
                        << where << " row " << row;
                    ASSERT_EQ(std::memcmp(&sum[at], &want_sum[as], row_bytes), 0)
                        << where << " row " << row;
                }
            }
        }
    }
}

// Sum, norm and second norm in one pass have the bits of the ops one after another.
TEST_F(NormTest, FusedIsTheSameAsItsParts) {
    for (const std::int64_t cols : {7, 172, 768, 2560, 5120, 11008}) {
        for (const std::int64_t rows : {3, 1100}) {
            if (rows > 3 && cols > 5120) continue;
            for (const DType type : kTypes) {
                for (const DType kept : {type, DType::f32}) {
                    for (const NormKind kind : kKinds) {
                        memory_.reset();
                        const Shape shape{rows, cols};
                        const Both x = make(type, shape), r = make(kept, shape, 3);
                        const Both w = make(DType::f32, {cols}), w2 = make(DType::f32, {cols});
                        const Both b = make(DType::f32, {cols}), b2 = make(DType::f32, {cols});
                        const std::string where = label(kind, rows, cols, type, kept);
                        NormPass pass =
                            pass_of(kind, poisoned(type, shape), x.tensor, w.tensor, b.tensor);
                        pass.residual = r.tensor;
                        pass.sum = poisoned(kept, shape);
                        pass.out2 = poisoned(type, shape);
                        pass.weight2 = w2.tensor;
                        pass.bias2 = b2.tensor;
                        norm(ctx_, pass);

                        std::vector<float> sum(x.values.size());
                        for (std::size_t i = 0; i < sum.size(); ++i) {
                            sum[i] = x.values[i] + r.values[i];
                        }
                        const Tensor want_sum = upload(kept, shape, sum);
                        ASSERT_EQ(bits(pass.sum), bits(want_sum)) << where;
                        const Tensor one =
                            ran(pass_of(kind, poisoned(type, shape), want_sum, w.tensor, b.tensor));
                        ASSERT_EQ(bits(pass.out), bits(one)) << where;
                        const Tensor two = ran(
                            pass_of(kind, poisoned(type, shape), want_sum, w2.tensor, b2.tensor));
                        ASSERT_EQ(bits(pass.out2), bits(two)) << where;

                        // The sum may replace the residual.
                        NormPass over = pass;
                        over.sum = r.tensor;
                        over.out = poisoned(type, shape);
                        norm(ctx_, over);
                        ASSERT_EQ(bits(over.sum), bits(want_sum)) << where;
                        ASSERT_EQ(bits(over.out), bits(one)) << where;
                    }
                }
            }
        }
    }
}

// Block a row, warp a row, and the path for odd addresses: one result. And in place.
TEST_F(NormTest, ARowsBitsDependOnTheRowAlone) {
    for (const std::int64_t cols : {64, 172, 768, 1024, 2552, 2560, 4096, 5120, 8192}) {
        for (const DType type : kTypes) {
            for (const NormKind kind : kKinds) {
                memory_.reset();
                const std::int64_t rows = 1100;
                const Both x = make(type, {rows, cols}, 1, 0.25f);
                const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
                const Tensor out = poisoned(type, {rows, cols});
                norm(ctx_, pass_of(kind, out, x.tensor, w.tensor, b.tensor));
                const std::vector<std::byte> all = bits(out);
                const std::string where = label(kind, rows, cols, type, type);
                const std::size_t bytes = out.row_bytes();
                const Tensor odd = poisoned(type, {cols + 1}), odd_out = poisoned(type, {cols + 1});
                const std::size_t size = dtype_bytes(type, 1);
                const auto shifted = [&](Tensor t) {
                    return Tensor(static_cast<std::byte*>(t.data) + size, type, {1, cols});
                };
                for (const std::int64_t row : {0, 1, 517, 1099}) {
                    const auto from = all.begin() + static_cast<std::ptrdiff_t>(bytes) * row;
                    const std::vector<std::byte> want(from,
                                                      from + static_cast<std::ptrdiff_t>(bytes));
                    const Tensor one_x = x.tensor.slice_rows(row, 1);
                    const Tensor one = poisoned(type, {1, cols});
                    norm(ctx_, pass_of(kind, one, one_x, w.tensor, b.tensor));
                    ASSERT_EQ(bits(one), want) << where << " row " << row;
                    stream_->on_device(shifted(odd).data, one_x.data, bytes);
                    norm(ctx_, pass_of(kind, shifted(odd_out), shifted(odd), w.tensor, b.tensor));
                    ASSERT_EQ(bits(shifted(odd_out)), want) << where << " row " << row;
                }
                norm(ctx_, pass_of(kind, x.tensor, x.tensor, w.tensor, b.tensor));
                ASSERT_EQ(bits(x.tensor), all) << where << " in place";
            }
        }
    }
}

// What another kernel's prologue gets from the same functions, with any number of threads.
template <int kThreads>
__global__ void norm_elsewhere(float* out, const float* x, const float* w, const float* b, int cols,
                               NormKind kind, bool through_function) {
    __shared__ float shared[2 * kThreads];
    wait_for_previous();
    const int thread = static_cast<int>(threadIdx.x);
    const RowStats stats = through_function
                               ? row_stats_of<kThreads>(
                                     kind, [x](int i) { return x[i]; }, cols, kEps, thread, shared)
                               : row_stats<kThreads>(kind, x, cols, kEps, thread, shared);
    for (int i = thread; i < cols; i += kThreads) out[i] = normed(x[i], stats, w[i], b[i]);
}

TEST_F(NormTest, OtherKernelsGetTheSameBits) {
    for (const std::int64_t cols : {1, 7, 64, 255, 256, 768, 1028, 2560, 4096, 11008}) {
        for (const NormKind kind : kKinds) {
            memory_.reset();
            const Both x = make(DType::f32, {1, cols}, 1, 0.5f);
            const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
            const Tensor out = poisoned(DType::f32, {1, cols});
            norm(ctx_, pass_of(kind, out, x.tensor, w.tensor, b.tensor));
            const std::vector<std::byte> want = bits(out);
            const auto check = [&](auto* kernel, int threads) {
                for (const bool through_function : {false, true}) {
                    const Tensor other = poisoned(DType::f32, {1, cols});
                    launch(ctx_, dim3(1), dim3(static_cast<unsigned>(threads)), 0, kernel,
                           other.f32(), x.tensor.f32(), w.tensor.f32(), b.tensor.f32(),
                           static_cast<int>(cols), kind, through_function);
                    ASSERT_EQ(bits(other), want)
                        << label(kind, 1, cols, DType::f32, DType::f32) << " threads " << threads;
                }
            };
            check(norm_elsewhere<32>, 32);
            check(norm_elsewhere<64>, 64);
            check(norm_elsewhere<128>, 128);
            check(norm_elsewhere<256>, 256);
            if (HasFatalFailure()) return;
        }
    }
}

// A chain as a step has it, replayed from a graph with overlapping launches.
TEST_F(NormTest, AGraphWithDependentLaunchesGivesTheSame) {
    for (const std::int64_t rows : {1, 1500}) {
        memory_.reset();
        const std::int64_t cols = 2560;
        const Both x = make(DType::f16, {rows, cols}), w = make(DType::f32, {cols});
        const Both b = make(DType::f32, {cols});
        const auto chain = [&](Tensor sum, Tensor h) {
            norm(ctx_, pass_of(NormKind::layer, h, x.tensor, w.tensor, b.tensor));
            for (int i = 0; i < 12; ++i) {
                norm_residual(ctx_, h, sum, h, i ? sum : x.tensor, w.tensor, b.tensor, kEps,
                              NormKind::layer);
            }
        };
        const Tensor sum = poisoned(DType::f16, {rows, cols}),
                     h = poisoned(DType::f16, {rows, cols});
        ctx_.dependent_launch = false;
        chain(sum, h);
        const std::vector<std::byte> want = bits(h), want_sum = bits(sum);
        ctx_.dependent_launch = true;
        Timeline timeline(64);
        ctx_.timeline = &timeline;
        const Graph graph = Graph::capture(*stream_, [&] { chain(sum, h); });
        ctx_.timeline = nullptr;
        for (int i = 0; i < 5; ++i) {
            timeline.reset(*stream_);
            graph.launch(*stream_);
        }
        EXPECT_EQ(bits(h), want);
        EXPECT_EQ(bits(sum), want_sum);
        EXPECT_EQ(timeline.read(*stream_).size(), 13u);
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
    EXPECT_THROW(layernorm(ctx_, out, x.tensor, {}, b.tensor, kEps), ContractError);
    EXPECT_THROW(norm_residual(ctx_, out, poisoned(DType::f32, {3, 8}), x.tensor, x.tensor,
                               w.tensor, {}, kEps, NormKind::rms),
                 ContractError);  // the sum is like the residual
    NormPass lone = pass_of(NormKind::rms, out, x.tensor, w.tensor, {});
    lone.out2 = poisoned(DType::f32, {3, 8});
    EXPECT_THROW(norm(ctx_, lone), ContractError);
}

}  // namespace
}  // namespace mr::cuda
