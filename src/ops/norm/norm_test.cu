#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/cuda/testing.h"
#include "ops/norm/norm_row.cuh"
#include "ops/norm/norm_testing.h"

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
    // Every time from another place of one long list: making normal values is most of the time.
    Both make(DType dtype, Shape shape, float deviation = 1, float mean = 0) {
        if (list_.empty()) list_ = normal((std::size_t{1} << 18) + 3);
        Both both{{}, std::vector<float>(static_cast<std::size_t>(shape.count()))};
        for (float& v : both.values) {
            v = list_[next_] * deviation + mean;
            if (++next_ == list_.size()) next_ = 0;
        }
        both.tensor = upload(dtype, shape, both.values);
        return both;
    }
    // On the device `some` again and again, `rows` rows in all.
    Tensor repeated(Tensor some, std::int64_t rows) {
        const Tensor all = poisoned(some.dtype, {rows, some.cols()});
        std::int64_t done = std::min(some.rows(), rows);
        stream_->on_device(all.data, some.data, some.slice_rows(0, done).bytes());
        while (done < rows) {  // twice as many each time
            const std::int64_t more = std::min(done, rows - done);
            const Tensor to = all.slice_rows(done, more);
            stream_->on_device(to.data, all.data, to.bytes());
            done += more;
        }
        return all;
    }
    // The first row that has not the bits of `want` again and again; -1 where there is none.
    std::int64_t first_other_row(Tensor got, Tensor want);
    Tensor ran(const NormPass& pass) {
        norm(ctx_, pass);
        return pass.out;
    }
    NormPass pass_of(NormKind kind, Tensor out, Tensor x, Tensor weight, Tensor bias) {
        return cuda::pass_of(kind, out, x, weight, bias, kEps);
    }
    std::vector<std::byte> bits(Tensor t) {
        return download(static_cast<const std::byte*>(t.data), t.bytes());
    }

  private:
    std::vector<float> list_;
    std::size_t next_ = 0;
};

// Every type is 2 bytes or 4.
__global__ void find_difference(const std::uint16_t* got, const std::uint16_t* want,
                                unsigned long long count, unsigned long long period,
                                unsigned long long* first) {
    wait_for_previous();
    const unsigned long long step = gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (got[i] != want[i % period]) atomicMin(first, i);
    }
}

std::int64_t NormTest::first_other_row(Tensor got, Tensor want) {
    const unsigned long long count = got.bytes() / 2;
    const unsigned long long none[] = {count};
    unsigned long long* first = upload<unsigned long long>(none);
    launch(ctx_, dim3(1024), dim3(256), 0, find_difference,
           static_cast<const std::uint16_t*>(got.data),
           static_cast<const std::uint16_t*>(want.data), count, want.bytes() / 2, first);
    const unsigned long long at = download(first, 1)[0];
    return at == count ? -1 : static_cast<std::int64_t>(at / (got.row_bytes() / 2));
}

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
            for (const float mean : {0.0f, 100.0f}) {  // must not swallow the variance
                if (mean != 0 && c.rows != 3) continue;
                if (c.rows > 33 && cols > 256) continue;  // a block a row, as fewer rows have it
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

// 2048 rows of f16 or bf16 go through the copy engine: one, two or four warps a row. All others,
// and columns that are not in eights, too few or too many, go on as more than 1024 rows do. Only
// some rows are compared with f64, the last ones among them; the sum is not asked for.
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
    constexpr std::int64_t kSome = 41;  // different rows
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
                    s.push_back(some_x.values[at] + some_r.values[at]);  // f32, as the kernel adds
                }
                const std::string where =
                    label(kind, c.rows, c.cols, c.x, c.out) + " row " + std::to_string(row);
                const std::vector<float> got = download(out.slice_rows(row, 1));
                expect_normed(kind, got.data(), c.out, s, w.values.data(),
                              biased ? b.values.data() : nullptr, where);
                if (HasFatalFailure()) return;
            }
            // Every row was written, as its like was.
            ASSERT_EQ(first_other_row(out, out.slice_rows(0, kSome)), -1)
                << label(kind, c.rows, c.cols, c.x, c.out);
        }
    }
}

// So many rows that a block takes several after another and its ring goes round more than twice,
// the last time not for all; whatever lies behind the rows stays as it is. With and without a
// residual, and with so many weights that a multiprocessor holds one block.
TEST_F(NormTest, ManyMoreRowsHaveTheBitsOfFew) {
    constexpr std::int64_t kSome = 61;  // different rows: these go the way of few
    for (const std::int64_t cols : {512, 1024, 2552, 2560, 2568, 4096, 5120, 5128, 8192}) {
        for (const DType type : kTypes) {
            if (type == DType::f32 && cols != 512 && cols != 2560 && cols != 4096) continue;
            // 264 blocks of 4 groups where a warp takes a row, of 2 or 1 where several do.
            const std::int64_t rows = cols <= 2560 ? 6011 : 2803;
            for (const NormKind kind : kKinds) {
                memory_.reset();
                const Both some_x = make(type, {kSome, cols}),
                           some_r = make(type, {kSome, cols}, 2);
                const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
                const Both w2 = make(DType::f32, {cols}), b2 = make(DType::f32, {cols});
                const Tensor x = repeated(some_x.tensor, rows), r = repeated(some_r.tensor, rows);
                const Tensor room = memory_.tensor(type, {rows + 1, cols});
                const Tensor room2 = memory_.tensor(type, {rows + 1, cols});
                const Tensor sums = memory_.tensor(type, {rows + 1, cols});
                const Tensor poison = poisoned(type, {1, cols});
                for (const bool residual : {false, true}) {
                    for (const bool two : {false, true}) {
                        for (const Tensor& t : {room, room2, sums}) {
                            stream_->fill(t.data, 0xff, t.bytes());
                        }
                        NormPass pass =
                            pass_of(kind, room.slice_rows(0, rows), x, w.tensor,
                                    kind == NormKind::layer || two ? b.tensor : Tensor{});
                        NormPass few = pass;
                        few.x = some_x.tensor;
                        few.out = poisoned(type, {kSome, cols});
                        if (residual) {
                            pass.residual = r;
                            pass.sum = sums.slice_rows(0, rows);
                            few.residual = some_r.tensor;
                            few.sum = poisoned(type, {kSome, cols});
                        }
                        if (two) {
                            pass.out2 = room2.slice_rows(0, rows);
                            few.out2 = poisoned(type, {kSome, cols});
                            pass.weight2 = few.weight2 = w2.tensor;
                            pass.bias2 = few.bias2 = b2.tensor;
                        }
                        norm(ctx_, pass);
                        norm(ctx_, few);
                        const std::string where = label(kind, rows, cols, type, type) +
                                                  (residual ? ", residual" : "") +
                                                  (two ? ", two" : "");
                        ASSERT_EQ(first_other_row(pass.out, few.out), -1) << where;
                        if (residual) {
                            ASSERT_EQ(first_other_row(pass.sum, few.sum), -1) << where;
                        }
                        if (two) {
                            ASSERT_EQ(first_other_row(pass.out2, few.out2), -1) << where;
                        }
                        for (const Tensor& t : {room, room2, sums}) {
                            ASSERT_EQ(first_other_row(t.slice_rows(rows, 1), poison), -1) << where;
                        }
                    }
                }
            }
        }
    }
}

// Rows of f32 into bf16 have a kernel of their own up to 2048 columns; a warp's ring goes round
// more than twice here.
TEST_F(NormTest, ManyRowsOfF32HaveTheBitsOfFew) {
    constexpr std::int64_t kSome = 61;
    for (const std::int64_t cols : {4, 100, 768, 772, 1024, 1028, 2048, 2052}) {
        const std::int64_t rows = cols <= 1024 ? 19011 : 8011;
        for (const NormKind kind : kKinds) {
            memory_.reset();
            const Both some = make(DType::f32, {kSome, cols}, 1, 0.5f);
            const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
            const Tensor x = repeated(some.tensor, rows);
            const Tensor room = poisoned(DType::bf16, {rows + 1, cols});
            const Tensor few = poisoned(DType::bf16, {kSome, cols});
            const Tensor bias = kind == NormKind::layer ? b.tensor : Tensor{};
            norm(ctx_, pass_of(kind, room.slice_rows(0, rows), x, w.tensor, bias));
            norm(ctx_, pass_of(kind, few, some.tensor, w.tensor, bias));
            const std::string where = label(kind, rows, cols, DType::f32, DType::bf16);
            ASSERT_EQ(first_other_row(room.slice_rows(0, rows), few), -1) << where;
            const Tensor poison = poisoned(DType::bf16, {1, cols});
            ASSERT_EQ(first_other_row(room.slice_rows(rows, 1), poison), -1) << where;
        }
    }
}

// Sum, norm and second norm in one pass have the bits of the ops one after another.
TEST_F(NormTest, FusedIsTheSameAsItsParts) {
    constexpr std::int64_t kSome = 13;  // different rows
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

// Block a row, warp a row, and the path for odd addresses: one result. And in place.
TEST_F(NormTest, ARowsBitsDependOnTheRowAlone) {
    for (const std::int64_t cols : {64, 172, 768, 1024, 2552, 2560, 4096, 5120, 8192}) {
        for (const DType type : kTypes) {
            for (const NormKind kind : kKinds) {
                memory_.reset();
                const std::int64_t rows = type == DType::f32 ? 1100 : 2100;
                const Tensor x = repeated(make(type, {97, cols}, 1, 0.25f).tensor, rows);
                const Both w = make(DType::f32, {cols}), b = make(DType::f32, {cols});
                const Tensor out = poisoned(type, {rows, cols});
                norm(ctx_, pass_of(kind, out, x, w.tensor, b.tensor));
                const std::string where = label(kind, rows, cols, type, type);
                const std::size_t bytes = out.row_bytes();
                const Tensor odd = poisoned(type, {cols + 1}), odd_out = poisoned(type, {cols + 1});
                const std::size_t size = dtype_bytes(type, 1);
                const auto shifted = [&](Tensor t) {
                    return Tensor(static_cast<std::byte*>(t.data) + size, type, {1, cols});
                };
                for (const std::int64_t row : {std::int64_t{0}, std::int64_t{517}, rows - 1}) {
                    const std::vector<std::byte> want = bits(out.slice_rows(row, 1));
                    const Tensor one_x = x.slice_rows(row, 1);
                    const Tensor one = poisoned(type, {1, cols});
                    norm(ctx_, pass_of(kind, one, one_x, w.tensor, b.tensor));
                    ASSERT_EQ(bits(one), want) << where << " row " << row;
                    stream_->on_device(shifted(odd).data, one_x.data, bytes);
                    norm(ctx_, pass_of(kind, shifted(odd_out), shifted(odd), w.tensor, b.tensor));
                    ASSERT_EQ(bits(shifted(odd_out)), want) << where << " row " << row;
                }
                norm(ctx_, pass_of(kind, x, x, w.tensor, b.tensor));
                ASSERT_EQ(first_other_row(x, out), -1) << where << " in place";
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
    const std::int64_t shapes[][2] = {{1, 2560}, {1500, 2560}, {2500, 2560}, {2500, 4096}};
    for (const auto& [rows, cols] : shapes) {
        memory_.reset();
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
    EXPECT_THROW(rmsnorm(ctx_, poisoned(DType::bf16, {3, 8}), x.tensor, w.tensor, kEps),
                 ContractError);  // f16 to bf16
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
