// linear_small() and linear_plain() against f64, and the fused forms against their parts.
#include <algorithm>
#include <cmath>

#include "ops/linear/linear_testing.h"

namespace mr::cuda {
namespace {

class SmallLinear : public LinearGpuTest {};

TEST_F(SmallLinear, EveryTypeAndOddSizesAgreeWithTheReference) {
    const int shapes[][2] = {{16, 64},  {8, 32},    {24, 96},   {100, 160},  {257, 320},
                             {64, 768}, {48, 2560}, {40, 4096}, {3181, 192}, {33, 11008}};
    for (const DType type : kSmallTypes) {
        for (const auto& [n, k] : shapes) {
            for (const int rows : {1, 2, 5, 8, 9, 17, 32, 33, 64, 100}) {
                memory_.reset();
                const Matrix m = matrix(type, n, k);
                std::vector<float> xv = normal(static_cast<std::size_t>(rows) * k);
                const Tensor x = upload(compute_type(type), {rows, k}, xv);
                std::vector<float> bias = normal(n);
                const Tensor b = upload(DType::f32, {n}, bias);
                const Tensor out = poisoned(DType::f32, {rows, n});
                linear_small(ctx_, {.x = x, .w = m.device, .bias = b, .out = out});
                const std::vector<float> got = download(out);
                const Reference want = reference(m, xv, rows, n, k);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const double expected = want.out[i] + bias[i % n];
                    ASSERT_NEAR(got[i], expected, want.slack[i] + std::fabs(expected) * 0x1p-22)
                        << dtype_name(type) << " [" << n << ", " << k << "] rows " << rows << " at "
                        << i;
                }
            }
        }
    }
}

// 1 to 4 rows go through one kernel, more through others: the results must be the same.
TEST_F(SmallLinear, ARowsBitsDoNotDependOnTheOtherRows) {
    for (const DType type : kSmallTypes) {
        // Blocks with many tiles, with more than one pass over the inputs, and a product as large
        // as those in which an input overwritten too early was noticed.
        for (const auto& [n, k] : {std::pair{300, 1408},
                                   {3300, 4160},
                                   {40, 64},
                                   {13001, 160},
                                   {24000, 96},
                                   {2999, 11008}}) {
            if (k == 11008 && (type == DType::f16 || type == DType::q4_0x8)) continue;
            memory_.reset();
            const Matrix m = matrix(type, n, k);
            std::vector<float> xv = normal(std::size_t{kMostRows} * k);
            const Tensor x = upload(compute_type(type), {kMostRows, k}, xv);
            const Tensor by_eight = poisoned(DType::f32, {kMostRows, n});
            for (int row = 0; row < kMostRows; row += 8) {
                const int rows = std::min(8, kMostRows - row);
                linear_small(ctx_, {.x = x.slice_rows(row, rows),
                                    .w = m.device,
                                    .out = by_eight.slice_rows(row, rows)});
            }
            const std::vector<float> whole = download(by_eight);
            for (const int rows :
                 {1, 2, 4, 5, 7, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200, 256, 300}) {
                const Tensor out = poisoned(DType::f32, {rows, n});
                linear_small(ctx_, {.x = x.slice_rows(0, rows), .w = m.device, .out = out});
                const std::vector<float> got = download(out);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    ASSERT_EQ(got[i], whole[i]) << dtype_name(type) << " [" << n << ", " << k
                                                << "] rows " << rows << " at " << i;
                }
            }
        }
    }
}

// More than 192 tokens are multiplied in tiles, up to 1,024 in a pass, with the bits of the kernels
// for fewer.
class TiledLinear : public SmallLinear {
  protected:
    void expect_bits_of_few(DType type, int n, int k) {
        constexpr int kRows = 1100;
        memory_.reset();
        const DeviceArena scratch("scratch", linear_small_scratch_bytes(kRows, k));
        stream_->fill(scratch.data(), 0xff, scratch.size());
        ctx_.scratch = {static_cast<std::byte*>(scratch.data()), scratch.size()};
        const Matrix m = matrix(type, n, k);
        std::vector<float> xv = normal(std::size_t{kRows} * k);
        const Tensor x = upload(type, {kRows, k}, xv);
        const Tensor few = poisoned(DType::f32, {kRows, n});
        for (int row = 0; row < kRows; row += 100) {
            linear_small(
                ctx_,
                {.x = x.slice_rows(row, 100), .w = m.device, .out = few.slice_rows(row, 100)});
        }
        const std::vector<float> want = download(few);
        for (const int rows : {193, 257, 320, 512, 700, 1024, 1100}) {
            const Tensor out = poisoned(DType::f32, {rows, n});
            linear_small(ctx_, {.x = x.slice_rows(0, rows), .w = m.device, .out = out});
            const std::vector<float> got = download(out);
            const auto differs = std::mismatch(got.begin(), got.end(), want.begin()).first;
            ASSERT_EQ(differs, got.end()) << dtype_name(type) << " [" << n << ", " << k << "] rows "
                                          << rows << " at " << differs - got.begin();
        }
    }
};

// Even and odd numbers of strips, less than eight granules of columns, and more tiles than the
// device runs blocks.
TEST_F(TiledLinear, HasTheBitsOfFewTokens) {
    for (const DType type : {DType::bf16, DType::f16}) {
        for (const auto& [n, k] : {std::pair{6144, 2560}, {2560, 9728}, {20000, 200}}) {
            expect_bits_of_few(type, n, k);
            if (HasFatalFailure()) return;
        }
    }
}
TEST_F(TiledLinear, HasTheBitsOfFewTokensInSmallProducts) {
    for (const auto& [n, k] : {std::pair{300, 1408}, {129, 64}}) {
        expect_bits_of_few(DType::bf16, n, k);
        if (HasFatalFailure()) return;
    }
}

// An engine without the device's turn multiplies by kernels whose blocks do not wait for each
// other, beside one whose blocks do: the bits are the same, and both end.
TEST_F(TiledLinear, BesideAProductThatTakesTheDeviceTheBitsAreTheSame) {
    constexpr int kRows = 300, n = 4104, k = 1024;
    Stream other;
    Context beside = ctx_;
    beside.cuda = &other;
    beside.whole_device = false;
    const DeviceArena scratch("scratch", linear_small_scratch_bytes(kRows, k));
    beside.scratch = {static_cast<std::byte*>(scratch.data()), scratch.size()};
    for (const DType type : kSmallTypes) {
        memory_.reset();
        const Matrix m = matrix(type, n, k);
        std::vector<float> xv = normal(std::size_t{kRows} * k);
        const Tensor x = upload(compute_type(type), {kRows, k}, xv);
        for (const int rows : {33, 65, 300}) {
            const Tensor out = poisoned(DType::f32, {rows, n}),
                         too = poisoned(DType::f32, {rows, n});
            other.fill(scratch.data(), 0xff, scratch.size());
            stream_->synchronize();
            for (int i = 0; i < 20; ++i) {
                linear_small(ctx_, {.x = x.slice_rows(0, rows), .w = m.device, .out = out});
                linear_small(beside, {.x = x.slice_rows(0, rows), .w = m.device, .out = too});
            }
            other.synchronize();
            ASSERT_EQ(download(out), download(too)) << dtype_name(type) << " rows " << rows;
        }
    }
    LinearIn first{.x = poisoned(DType::bf16, {300, 320}),
                   .w = poisoned(DType::bf16, {2 * 1472, 320}),
                   .finish = Finish::gate,
                   .out = poisoned(DType::bf16, {300, 1472})};
    EXPECT_EQ(linear_small_orders(ctx_, first, DType::bf16), device()->sm >= 90);
    EXPECT_FALSE(linear_small_orders(beside, first, DType::bf16));
}

// The MLP of many rows: output in the order of the next product gives the same bits as plain
// output.
TEST_F(TiledLinear, AnOrderedInputGivesTheSameBits) {
    if (device()->sm < 90) GTEST_SKIP() << "only tiled products for 9.0 have an order";
    constexpr int kDim = 320, kHidden = 1472, kRows = 1024;
    for (const DType type : {DType::bf16, DType::f16}) {
        memory_.reset();
        const DeviceArena scratch("scratch", linear_small_scratch_bytes(kRows, kHidden));
        stream_->fill(scratch.data(), 0xff, scratch.size());
        ctx_.scratch = {static_cast<std::byte*>(scratch.data()), scratch.size()};
        const Matrix up = matrix(type, 2 * kHidden, kDim), down = matrix(type, kDim, kHidden);
        std::vector<float> xv = normal(std::size_t{kRows} * kDim);
        const Tensor x = upload(type, {kRows, kDim}, xv);
        for (const int rows : {193, 300, 1024}) {
            std::vector<float> got[2];
            for (const bool ordered : {false, true}) {
                const Tensor between = poisoned(type, {rows, kHidden});
                const Tensor out = poisoned(DType::f32, {rows, kDim});
                LinearIn first{.x = x.slice_rows(0, rows), .w = up.device, .out = between};
                first.finish = Finish::gate;
                LinearIn second{.x = between, .w = down.device, .out = out};
                ASSERT_TRUE(linear_small_orders(ctx_, first, type));
                first.ordered_out = second.ordered_x = ordered;
                linear_small(ctx_, first);
                linear_small(ctx_, second);
                got[ordered] = download(out);
            }
            ASSERT_EQ(got[0], got[1]) << dtype_name(type) << " rows " << rows;
        }
        // Kernels for fewer rows do not support this order.
        LinearIn few{.x = x.slice_rows(0, 192),
                     .w = up.device,
                     .finish = Finish::gate,
                     .out = poisoned(type, {192, kHidden})};
        EXPECT_FALSE(linear_small_orders(ctx_, few, type));
        few.x = x.slice_rows(0, 300);
        EXPECT_FALSE(linear_small_orders(ctx_, few, DType::q8_0x8));
        few.activation = ops::Activation::gelu;
        EXPECT_FALSE(linear_small_orders(ctx_, few, type));
    }
}

// Few tokens, and more, go through kernels of different shapes: every row has the same bits as
// alone, for every finish.
TEST_F(SmallLinear, EveryFinishOfManyRowsIsThatOfEachAlone) {
    enum class Out { f32, compute, add, activate, gate, qkv };
    constexpr int kRows = 300, kPageTokens = 16, kSequences = 5, kMaxPages = 4, kHeadDim = 8;
    constexpr int kPages = kSequences * kMaxPages;
    std::vector<std::int32_t> positions(kRows), sequence(kRows), pages(kPages);
    for (int t = 0; t < kRows; ++t) {
        sequence[t] = t % kSequences;
        positions[t] = t / kSequences;
    }
    for (int i = 0; i < kPages; ++i) pages[i] = (7 * i + 3) % kPages;
    for (const DType type : kSmallTypes) {
        const DType compute = compute_type(type);
        // Columns that are not whole granules: quantised weights have blocks of 32.
        const int some = ops::is_tiled(type) ? 96 : 72, more = ops::is_tiled(type) ? 160 : 200;
        for (const auto& [n, k] : {std::pair{50, some},
                                   {152, 96},
                                   {4104, more},
                                   {152, 1024},
                                   {4104, 4096},
                                   {50, 11008},
                                   {20000, some}}) {
            for (const Out what :
                 {Out::f32, Out::compute, Out::add, Out::activate, Out::gate, Out::qkv}) {
                memory_.reset();
                const int rows_of_w = what == Out::gate  ? (n + 15) / 16 * 16
                                      : what == Out::qkv ? n / kHeadDim * kHeadDim
                                                         : n;
                const bool norm = what == Out::gate || what == Out::qkv;
                const Matrix m = matrix(type, rows_of_w, k);
                std::vector<float> xv = normal(std::size_t{kRows} * k), weight = normal(k),
                                   bias = normal(rows_of_w),
                                   turns = normal(std::size_t{kPageTokens} * kMaxPages * kHeadDim);
                const Tensor x = upload(norm ? DType::f32 : compute, {kRows, k}, xv);
                LinearIn in;
                in.w = m.device;
                in.finish = what == Out::add        ? Finish::add
                            : what == Out::activate ? Finish::activate
                            : what == Out::gate     ? Finish::gate
                            : what == Out::qkv      ? Finish::qkv
                                                    : Finish::store;
                if (norm)
                    in.norm = {upload(DType::f32, {k}, weight), {}, ops::NormKind::rms, 1e-5f};
                // With and without a bias, by the shape; gate: on the up rows, by silu or not.
                const bool some_bias = n == 152 && (what == Out::add || what == Out::gate);
                if (what == Out::activate || what == Out::qkv || some_bias) {
                    const int count = what == Out::gate ? rows_of_w / 2 : rows_of_w;
                    bias.resize(static_cast<std::size_t>(count));
                    in.bias = upload(DType::f32, {count}, bias);
                }
                if (what == Out::gate && n == 50) in.activation = ops::Activation::gelu;
                const int cols = what == Out::gate  ? rows_of_w / 2
                                 : what == Out::qkv ? rows_of_w - 2 * kHeadDim
                                                    : rows_of_w;
                const bool f32 = what == Out::f32 || what == Out::add;
                const Tensor out = poisoned(f32 ? DType::f32 : compute, {kRows, cols});
                std::vector<float> before =
                    normal(what == Out::add ? std::size_t{kRows} * cols : 1);
                const Tensor residual =
                    what == Out::add ? upload(DType::f32, {kRows, cols}, before) : Tensor{};
                ops::DeviceBatch batch;
                if (what == Out::qkv) {
                    batch.positions = upload<std::int32_t>(positions);
                    batch.sequence = upload<std::int32_t>(sequence);
                    batch.pages = upload<std::int32_t>(pages);
                    batch.max_pages = kMaxPages;
                    in.batch = &batch;
                    in.qkv.heads = rows_of_w / kHeadDim - 2;
                    in.qkv.rotary = kHeadDim;
                    in.qkv.rope =
                        upload(DType::f32, {kPageTokens * kMaxPages, kHeadDim / 2, 2}, turns);
                    const Shape cache{kPages, 1, kPageTokens, kHeadDim};
                    in.qkv.kv = {poisoned(compute, cache), poisoned(compute, cache)};
                }
                // The first `rows` rows, `step` at a time.
                const auto results = [&](int rows, int step) {
                    stream_->fill(out.data, 0xff, out.bytes());
                    if (residual) {
                        stream_->on_device(out.data, residual.data,
                                           static_cast<std::size_t>(rows) * residual.row_bytes());
                    }
                    std::vector<Tensor> parts{out};
                    if (what == Out::qkv) {
                        parts = {out, in.qkv.kv.keys, in.qkv.kv.values};
                        stream_->fill(in.qkv.kv.keys.data, 0xff, in.qkv.kv.keys.bytes());
                        stream_->fill(in.qkv.kv.values.data, 0xff, in.qkv.kv.values.bytes());
                    }
                    const ops::DeviceBatch all = batch;
                    for (int t = 0; t < rows; t += step) {
                        in.x = x.slice_rows(t, step);
                        if (what == Out::qkv) {
                            in.qkv.q = out.slice_rows(t, step);
                            batch.positions = all.positions + t;
                            batch.sequence = all.sequence + t;
                            batch.tokens = step;
                        } else {
                            in.out = out.slice_rows(t, step);
                        }
                        linear_small(ctx_, in);
                    }
                    batch = all;
                    std::vector<std::byte> bytes;
                    for (const Tensor& part : parts) {
                        const auto some =
                            download(static_cast<const std::byte*>(part.data), part.bytes());
                        bytes.insert(bytes.end(), some.begin(), some.end());
                    }
                    return bytes;
                };
                // Large products only for a few row counts: their results are many megabytes.
                const bool large = std::int64_t{n} * k > (std::int64_t{1} << 20) || n > 5000;
                for (const int rows :
                     large ? std::vector<int>{5, 8, 16, 17, 32, 33, 64, 65, 100, 129, 200, 256, 300}
                           : std::vector<int>{1,   2,   4,   5,   7,   8,   9,   16,
                                              17,  31,  32,  33,  63,  64,  65,  97,
                                              100, 128, 129, 200, 255, 256, 257, 300}) {
                    const std::vector<std::byte> alone = results(rows, 1),
                                                 together = results(rows, rows);
                    ASSERT_TRUE(alone == together)
                        << dtype_name(type) << " [" << rows_of_w << ", " << k << "] rows " << rows
                        << " finish " << static_cast<int>(what) << " first at byte "
                        << std::mismatch(alone.begin(), alone.end(), together.begin()).first -
                               alone.begin();
                }
            }
        }
    }
}

// Norm, bias, rotation and writing to a paged cache: many tokens at once give the same bits as each
// alone, and nothing else is touched.
TEST_F(SmallLinear, ManyTokensOfQkvAreThoseOfEachAlone) {
    struct Case {
        int heads, kv_heads, head_dim, rotary, k;
        ops::NormKind norm;
    };
    const Case cases[] = {{4, 2, 48, 24, 1408, ops::NormKind::rms},
                          {3, 1, 40, 40, 160, ops::NormKind::layer},
                          {40, 8, 64, 64, 4224, ops::NormKind::layer},
                          {200, 8, 64, 64, 160, ops::NormKind::rms}};
    constexpr int kPageTokens = 16, kSequences = 5, kMaxPages = 4, kRows = 100;
    constexpr int kPages = kSequences * kMaxPages;
    std::vector<std::int32_t> positions(kRows), sequence(kRows), pages(kPages);
    for (int t = 0; t < kRows; ++t) {
        sequence[t] = t % kSequences;
        positions[t] = t / kSequences + sequence[t] * 7;
    }
    for (int i = 0; i < kPages; ++i) pages[i] = (7 * i + 3) % kPages;
    for (const DType type : kSmallTypes) {
        for (const Case& c : cases) {
            memory_.reset();
            const int n = (c.heads + 2 * c.kv_heads) * c.head_dim;
            const Matrix m = matrix(type, n, c.k);
            std::vector<float> xv = normal(std::size_t{kRows} * c.k), weight = normal(c.k),
                               norm_bias = normal(c.k), bias = normal(n),
                               rotations = normal(std::size_t{kPageTokens} * kMaxPages * c.rotary);
            ops::DeviceBatch batch;
            batch.positions = upload<std::int32_t>(positions);
            batch.sequence = upload<std::int32_t>(sequence);
            batch.pages = upload<std::int32_t>(pages);
            batch.max_pages = kMaxPages;
            LinearIn in;
            in.norm = {upload(DType::f32, {c.k}, weight), {}, c.norm, 1e-5f};
            if (c.norm == ops::NormKind::layer) in.norm.bias = upload(DType::f32, {c.k}, norm_bias);
            in.w = m.device;
            in.bias = upload(DType::f32, {n}, bias);
            in.finish = Finish::qkv;
            in.batch = &batch;
            in.qkv.rope = upload(DType::f32, {kPageTokens * kMaxPages, c.rotary / 2, 2}, rotations);
            in.qkv.rotary = c.rotary;
            in.qkv.heads = c.heads;
            const Tensor x = upload(DType::f32, {kRows, c.k}, xv);
            const DType kv_type = type == DType::f16      ? DType::f16
                                  : type == DType::q8_0x8 ? DType::f32
                                                          : DType::bf16;
            for (const int rows : {9, 40, 100}) {
                std::vector<std::byte> results[2];
                for (const bool together : {false, true}) {
                    const Tensor q = poisoned(compute_type(type), {rows, c.heads * c.head_dim});
                    const Shape cache{kPages, c.kv_heads, kPageTokens, c.head_dim};
                    in.qkv.kv = {poisoned(kv_type, cache), poisoned(kv_type, cache)};
                    const ops::DeviceBatch all = batch;
                    for (int t = 0; t < rows; t += together ? rows : 1) {
                        const int some = together ? rows : 1;
                        in.x = x.slice_rows(t, some);
                        in.qkv.q = q.slice_rows(t, some);
                        batch.positions = all.positions + t;
                        batch.sequence = all.sequence + t;
                        batch.tokens = some;
                        linear_small(ctx_, in);
                    }
                    batch = all;
                    for (const Tensor& part : {q, in.qkv.kv.keys, in.qkv.kv.values}) {
                        const auto bytes =
                            download(static_cast<const std::byte*>(part.data), part.bytes());
                        results[together].insert(results[together].end(), bytes.begin(),
                                                 bytes.end());
                    }
                }
                // Poison is 0xff: all of q must be written, and of the cache the rows' entries.
                const std::size_t q_bytes =
                    results[0].size() - 2 * static_cast<std::size_t>(in.qkv.kv.keys.bytes());
                const auto written = std::count_if(
                    results[0].begin() + static_cast<std::ptrdiff_t>(q_bytes), results[0].end(),
                    [](std::byte b) { return b != std::byte{255}; });
                EXPECT_GT(written, rows * c.kv_heads * c.head_dim);
                ASSERT_TRUE(results[0] == results[1])
                    << dtype_name(type) << " k " << c.k << " rows " << rows << " first at byte "
                    << std::mismatch(results[0].begin(), results[0].end(), results[1].begin())
                               .first -
                           results[0].begin()
                    << ", q has " << q_bytes;
            }
        }
    }
}

TEST_F(SmallLinear, AddActivateAndGateAreTheirParts) {
    for (const DType type : kSmallTypes) {
        for (const auto& [rows, n] :
             {std::pair{1, 96}, {4, 96}, {9, 96}, {40, 96}, {30, 3248}, {70, 3248}, {20, 27008}}) {
            memory_.reset();
            const int k = 512;
            const Matrix m = matrix(type, n, k);
            std::vector<float> xv = normal(static_cast<std::size_t>(rows) * k);
            const Tensor x = upload(compute_type(type), {rows, k}, xv);
            const Tensor plain = poisoned(DType::f32, {rows, n});
            linear_small(ctx_, {.x = x, .w = m.device, .out = plain});
            const std::vector<float> sums = download(plain);

            std::vector<float> before = normal(static_cast<std::size_t>(rows) * n);
            const Tensor residual = upload(DType::f32, {rows, n}, before);
            linear_small(ctx_, {.x = x, .w = m.device, .finish = Finish::add, .out = residual});
            const std::vector<float> added = download(residual);
            for (std::size_t i = 0; i < added.size(); ++i) ASSERT_EQ(added[i], before[i] + sums[i]);

            const Tensor gated = poisoned(DType::f32, {rows, n / 2});
            linear_small(ctx_, {.x = x, .w = m.device, .finish = Finish::gate, .out = gated});
            const std::vector<float> gates = download(gated);
            for (int t = 0; t < rows; ++t) {
                for (int i = 0; i < n / 2; ++i) {
                    const double g = sums[t * n + i], u = sums[t * n + n / 2 + i];
                    const double want = g / (1 + std::exp(-g)) * u;
                    ASSERT_NEAR(gates[t * (n / 2) + i], want, std::fabs(want) * 1e-5 + 1e-7)
                        << dtype_name(type) << " " << t << " " << i;
                }
            }

            const Tensor relu = poisoned(compute_type(type), {rows, n});
            linear_small(ctx_, {.x = x,
                                .w = m.device,
                                .finish = Finish::activate,
                                .activation = ops::Activation::relu,
                                .out = relu});
            const std::vector<float> active = download(relu);
            for (std::size_t i = 0; i < active.size(); ++i) {
                const double want = std::max(sums[i], 0.0f);
                // Half a step of subnormal f16.
                const double least = compute_type(type) == DType::f16 ? 0x1p-25 : 0;
                ASSERT_NEAR(active[i], want,
                            std::fabs(want) * epsilon(compute_type(type)) * 1.01 + least);
            }
        }
    }
}

class PlainLinear : public LinearGpuTest {
    bool tensor_cores() const override { return false; }
};

TEST_F(PlainLinear, AgreesWithTheReference) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0x8, DType::q4_0x8}) {
        for (const auto& [n, k] :
             {std::pair{7, 5}, {64, 172}, {172, 64}, {33, 1001}, {9, 32}, {50, 736}}) {
            if (ops::is_tiled(type) && k % ops::kTileBlock != 0) continue;
            for (const int rows : {1, 3, 9}) {
                memory_.reset();
                Matrix m = matrix(type, n, k);
                m.host = {};  // no 8-bit activations here: f64 is the reference
                std::vector<float> xv = normal(static_cast<std::size_t>(rows) * k);
                const Tensor x = upload(compute_type(type), {rows, k}, xv);
                const Tensor out = poisoned(DType::f32, {rows, n});
                linear_plain(ctx_, out, x, m.device, {}, false);
                const std::vector<float> got = download(out);
                const Reference want = reference(m, xv, rows, n, k);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    ASSERT_NEAR(got[i], want.out[i], want.slack[i]) << dtype_name(type) << i;
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
