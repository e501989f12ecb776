// A norm fused into a product, and everything between x and
// attention fused into one product, give the same bits as separate
// kernels. Also linear_plain() in all its forms against f64.
#include <algorithm>
#include <cmath>
#include <string>

#include "ops/linear/linear_testing.h"
#include "ops/norm/norm_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace mr::cuda {
namespace {

class FusedLinear : public LinearGpuTest {
  protected:
    std::vector<std::byte> bytes_of(Tensor t) {
        return download(static_cast<const std::byte*>(t.data), t.bytes());
    }
    // x normed by a separate kernel, rounded as linear_small() rounds it.
    Tensor normed(Tensor x, const NormIn& by, DType compute) {
        const Tensor h = poisoned(compute, x.shape);
        NormPass pass;
        pass.kind = by.kind;
        pass.eps = by.eps;
        pass.x = x;
        pass.out = h;
        pass.weight = by.weight;
        pass.bias = by.bias;
        norm(ctx_, pass);
        return h;
    }
    NormIn make_norm(ops::NormKind kind, int k) {
        std::vector<float> weight = normal(static_cast<std::size_t>(k)), bias = weight;
        std::reverse(bias.begin(), bias.end());
        NormIn out{upload(DType::f32, {k}, weight), {}, kind, 1e-5f};
        if (kind == ops::NormKind::layer) out.bias = upload(DType::f32, {k}, bias);
        return out;
    }
    // Values around 0.4, so that a layer norm has a mean to subtract.
    Tensor make_x(int rows, int k) {
        std::vector<float> values = normal(static_cast<std::size_t>(rows) * k);
        for (float& v : values) v += 0.4f;
        return upload(DType::f32, {rows, k}, values);
    }
};

std::size_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

// Rows that a block holds in registers (k up to 4,096) and wider ones; up to 8 tokens and more.
TEST_F(FusedLinear, ANormInsideOfAProductIsTheNormBeforeIt) {
    struct Form {
        const char* name;
        Finish finish;
        bool rounded, bias;  // out in the compute type
    };
    const Form forms[] = {{"store", Finish::store, false, true},
                          {"store rounded", Finish::store, true, false},
                          {"add", Finish::add, false, true},
                          {"activate", Finish::activate, true, true},
                          {"gate", Finish::gate, true, false}};
    constexpr int kRows = 40;
    for (const DType type : kSmallTypes) {
        const DType compute = compute_type(type);
        for (const auto& [n, k] :
             {std::pair{96, 64}, {48, 1376}, {48, 4096}, {32, 4224}, {112, 2560}}) {
            for (const ops::NormKind kind : {ops::NormKind::rms, ops::NormKind::layer}) {
                memory_.reset();
                const Matrix m = matrix(type, n, k);
                const NormIn by = make_norm(kind, k);
                const Tensor all = make_x(kRows, k);
                std::vector<float> bias_values = normal(static_cast<std::size_t>(n));
                const Tensor bias = upload(DType::f32, {n}, bias_values);
                std::vector<float> before = normal(std::size_t{kRows} * n);
                for (const int rows : {1, 3, 8, 9, kRows}) {
                    const Tensor x = all.slice_rows(0, rows);
                    const Tensor h = normed(x, by, compute);
                    for (const Form& form : forms) {
                        const int cols = form.finish == Finish::gate ? n / 2 : n;
                        Tensor out[2];
                        for (const bool fused : {false, true}) {
                            LinearIn in;
                            in.x = fused ? x : h;
                            if (fused) in.norm = by;
                            in.w = m.device;
                            if (form.bias) in.bias = bias;
                            in.finish = form.finish;
                            in.activation = ops::Activation::gelu;
                            in.out = poisoned(form.rounded ? compute : DType::f32, {rows, cols});
                            if (form.finish == Finish::add) {
                                stream_->to_device(in.out.data, before.data(), in.out.bytes(),
                                                   nullptr);
                            }
                            linear_small(ctx_, in);
                            out[fused] = in.out;
                        }
                        const std::vector<std::byte> want = bytes_of(out[0]),
                                                     got = bytes_of(out[1]);
                        ASSERT_TRUE(got == want)
                            << dtype_name(type) << " [" << n << ", " << k << "] rows " << rows
                            << " norm " << static_cast<int>(kind) << " " << form.name
                            << ": first at byte " << first_difference(got, want);
                        for (const float v : download(out[1])) ASSERT_TRUE(std::isfinite(v));
                    }
                }
            }
        }
    }
}

// norm + qkv + bias + rotation + writing to the cache.
TEST_F(FusedLinear, QkvIsItsParts) {
    struct Case {
        int heads, kv_heads, head_dim, rotary, k;
        ops::NormKind norm;
        bool bias;
    };
    const Case cases[] = {
        {4, 2, 48, 48, 1376, ops::NormKind::rms, false},    // grouped heads
        {3, 1, 40, 40, 160, ops::NormKind::rms, true},      // ... with biases (Qwen2)
        {8, 8, 64, 16, 512, ops::NormKind::layer, true},    // a quarter is rotated (GPT-NeoX)
        {4, 4, 32, 0, 96, ops::NormKind::layer, true},      // nothing is rotated (GPT-2)
        {6, 2, 128, 128, 4224, ops::NormKind::rms, false},  // x too wide for registers
    };
    constexpr int kPageTokens = 16, kSequences = 5, kMaxPages = 4, kRows = 70;
    constexpr int kPages = kSequences * kMaxPages, kPositions = 100;
    std::vector<std::int32_t> positions(kRows), sequence(kRows), pages(kPages);
    for (int t = 0; t < kRows; ++t) {
        sequence[t] = t % kSequences;
        positions[t] = t / kSequences + sequence[t] * 20;  // the last two wrap in their tables
    }
    for (int i = 0; i < kPages; ++i) pages[i] = (7 * i + 3) % kPages;
    for (const DType type : kSmallTypes) {
        const DType compute = compute_type(type);
        const DType q_type = type == DType::q4_0x8 ? DType::f32 : compute;
        const DType kv_type = type == DType::q8_0x8 ? DType::f32 : compute;
        for (const Case& c : cases) {
            memory_.reset();
            const int q_dim = c.heads * c.head_dim, n = q_dim + 2 * c.kv_heads * c.head_dim;
            const Matrix m = matrix(type, n, c.k);
            const NormIn by = make_norm(c.norm, c.k);
            const Tensor all = make_x(kRows, c.k);
            std::vector<float> bias_values = normal(static_cast<std::size_t>(n)),
                               rotations = normal(std::size_t{kPositions} * c.rotary);
            const Tensor bias = c.bias ? upload(DType::f32, {n}, bias_values) : Tensor{};
            const Tensor rope = c.rotary > 0
                                    ? upload(DType::f32, {kPositions, c.rotary / 2, 2}, rotations)
                                    : Tensor{};
            ops::DeviceBatch batch;
            batch.positions = upload<std::int32_t>(positions);
            batch.sequence = upload<std::int32_t>(sequence);
            batch.pages = upload<std::int32_t>(pages);
            batch.max_pages = kMaxPages;
            for (const int rows : {1, 5, 8, 9, 40, kRows}) {
                batch.tokens = rows;
                const Tensor x = all.slice_rows(0, rows);
                const Shape q_shape{rows, c.heads, c.head_dim};
                const Shape cache{kPages, c.kv_heads, kPageTokens, c.head_dim};
                Tensor q[2], keys[2], values[2];
                for (const bool fused : {false, true}) {
                    q[fused] = poisoned(q_type, q_shape);
                    keys[fused] = poisoned(kv_type, cache);
                    values[fused] = poisoned(kv_type, cache);
                    LinearIn in;
                    in.w = m.device;
                    if (fused) {
                        in.x = x;
                        in.norm = by;
                        in.bias = bias;
                        in.finish = Finish::qkv;
                        in.qkv = {q[fused], {keys[fused], values[fused]}, rope, c.rotary, c.heads};
                        in.batch = &batch;
                        linear_small(ctx_, in);
                        continue;
                    }
                    in.x = normed(x, by, compute);
                    in.out = poisoned(DType::f32, {rows, n});
                    linear_small(ctx_, in);
                    QkvFinish finish;
                    finish.q_out = q[fused];
                    finish.kv = {keys[fused], values[fused]};
                    finish.qkv = in.out;
                    finish.bias = bias;
                    finish.rope = rope;
                    qkv_finish(ctx_, finish, batch);
                }
                const std::string what = std::string(dtype_name(type)) + " heads of " +
                                         std::to_string(c.head_dim) + ", k " + std::to_string(c.k) +
                                         ", rows " + std::to_string(rows) + ": ";
                const auto compare = [&](const char* part, const Tensor(&t)[2]) {
                    const std::vector<std::byte> want = bytes_of(t[0]), got = bytes_of(t[1]);
                    EXPECT_TRUE(got == want)
                        << what << part << " first at byte " << first_difference(got, want);
                    // Poison is NaN: compares which values are still poison, and the written ones.
                    return std::count_if(want.begin(), want.end(),
                                         [](std::byte b) { return b != std::byte{255}; });
                };
                compare("q", q);
                const auto written = compare("keys", keys) + compare("values", values);
                EXPECT_GT(written, rows * c.kv_heads * c.head_dim) << what;
                for (const float v : download(q[1])) ASSERT_TRUE(std::isfinite(v)) << what;
                if (HasFailure()) return;
            }
        }
    }
}

class PlainForms : public LinearGpuTest {
    bool tensor_cores() const override { return false; }
};

// linear_plain() as the engine uses it: with a bias, added to `out`, rounded.
TEST_F(PlainForms, AddsBiasesAndRounds) {
    struct Form {
        bool bias, add, rounded;
    };
    const Form forms[] = {
        {true, false, false}, {true, true, false}, {false, true, false}, {true, false, true}};
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0x8, DType::q4_0x8}) {
        const DType compute = compute_type(type);
        for (const auto& [n, k] : {std::pair{7, 5}, {64, 172}, {172, 64}, {33, 1001}, {50, 736}}) {
            if (ops::is_tiled(type) && k % ops::kTileBlock != 0) continue;
            for (const int rows : {1, 3, 9}) {
                memory_.reset();
                Matrix m = matrix(type, n, k);
                m.host = {};  // no 8-bit activations here: f64 is the reference
                std::vector<float> xv = normal(static_cast<std::size_t>(rows) * k);
                const Tensor x = upload(compute, {rows, k}, xv);
                std::vector<float> bias_values = normal(static_cast<std::size_t>(n));
                const Tensor bias = upload(DType::f32, {n}, bias_values);
                const Reference sums = reference(m, xv, rows, n, k);
                for (const Form& form : forms) {
                    const DType out_type = form.rounded ? compute : DType::f32;
                    Tensor out = poisoned(out_type, {rows, n});
                    std::vector<float> before = normal(static_cast<std::size_t>(rows) * n);
                    if (form.add) out = upload(DType::f32, {rows, n}, before);
                    linear_plain(ctx_, out, x, m.device, form.bias ? bias : Tensor{}, form.add);
                    const std::vector<float> got = download(out);
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        const double total =
                            sums.out[i] +
                            (form.bias ? double{bias_values[i % static_cast<std::size_t>(n)]} : 0);
                        const double want = total + (form.add ? double{before[i]} : 0);
                        // Each addition rounds to f32, then the result to its type; subnormal f16
                        // has steps of 2^-24.
                        double slack = sums.slack[i] + (std::fabs(total) + std::fabs(want)) *
                                                           epsilon(DType::f32) * 1.01;
                        if (form.rounded) slack += std::fabs(want) * epsilon(compute) * 1.01;
                        if (out_type == DType::f16) slack += 0x1p-25;
                        ASSERT_NEAR(got[i], want, slack)
                            << dtype_name(type) << " [" << n << ", " << k << "] rows " << rows
                            << " bias " << form.bias << " add " << form.add << " at " << i;
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
