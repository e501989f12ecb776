// What the bits of norms on the GPU must not depend on.
#include "ops/norm/norm_row.cuh"
#include "ops/norm/norm_testing.cuh"
#include "ops/norm/norm_weights_cuda.h"

namespace mr::cuda::norms {
namespace {

// So many rows that a block takes several in turn and its ring wraps more than twice, the last time
// partially; memory past the rows must stay unchanged. With and without a residual, and with so
// many weights that a multiprocessor holds only one block.
TEST_F(NormTest, ManyMoreRowsHaveTheBitsOfFew) {
    constexpr std::int64_t kSome = 61;  // distinct rows; these use the kernel for few rows
    for (const std::int64_t cols : {512, 1024, 2552, 2560, 2568, 4096, 5120, 5128, 8192}) {
        for (const DType type : kTypes) {
            if (type == DType::f32 && cols != 512 && cols != 2560 && cols != 4096) continue;
            // 264 blocks of 4 groups with one warp per row, of 2 or 1 with several.
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

// Rows of f32 into bf16 have a separate kernel up to 2048 columns; a warp's ring wraps more than
// twice here.
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

// Weights and biases of the rows' type, where supported, give the same bits as in f32.
TEST_F(NormTest, WeightsOfTheRowsTypeAreTheSameInF32) {
    constexpr std::int64_t kRows = 2048;
    for (const std::int64_t cols : {1024, 2552, 2560, 5120, 8192}) {
        for (const DType type : {DType::f16, DType::bf16}) {
            if (!norm_takes_weights_like_rows(type, kRows, cols)) GTEST_SKIP() << "before sm_90";
            for (const NormKind kind : kKinds) {
                memory_.reset();
                const Both x = make(type, {kRows, cols}), r = make(type, {kRows, cols});
                Both w = make(type, {cols}), b = make(type, {cols});
                const Tensor wide_w = upload(DType::f32, {cols}, w.values);
                const Tensor wide_b = upload(DType::f32, {cols}, b.values);
                const Tensor out = poisoned(type, {kRows, cols});
                const Tensor wide_out = poisoned(type, {kRows, cols});
                NormPass pass = pass_of(kind, out, x.tensor, w.tensor, b.tensor);
                NormPass wide = pass_of(kind, wide_out, x.tensor, wide_w, wide_b);
                pass.residual = wide.residual = r.tensor;
                norm(ctx_, pass);
                norm(ctx_, wide);
                ASSERT_EQ(first_other_row(out, wide_out), -1)
                    << label(kind, kRows, cols, type, type);
            }
        }
    }
    EXPECT_FALSE(norm_takes_weights_like_rows(DType::f32, kRows, 2560));
    EXPECT_FALSE(norm_takes_weights_like_rows(DType::f16, kRows - 1, 2560));
    EXPECT_FALSE(norm_takes_weights_like_rows(DType::f16, kRows, 2564));
}

// A block per row, a warp per row, and the path for odd addresses: one result. Also in place.
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

// The same functions in another kernel's prologue, with any number of threads.
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

// A chain as in a step, replayed from a graph with overlapping launches.
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

}  // namespace
}  // namespace mr::cuda::norms
