#include "ops/rope/rope_cuda.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "ops/norm/norm_testing.h"

namespace mr::cuda::rope_cuda_test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr double kRoundoff = 0x1p-24;
constexpr float kEps = 1e-6f;

std::vector<double> frequencies(int rotary) {
    std::vector<double> out;
    for (int i = 0; i < rotary / 2; ++i) out.push_back(std::pow(10000.0, -2.0 * i / rotary));
    return out;
}

// f32 operations on the host without fusing: in f64 a product of two f32 is exact, and a sum rounds
// to the same f32.
float product(float a, float b) { return static_cast<float>(double{a} * double{b}); }
float sum(float a, float b) { return static_cast<float>(double{a} + double{b}); }

class RopeTest : public GpuTest {
  protected:
    Tensor table_of(std::int64_t positions, int rotary, double magnitude = 1) {
        const std::vector<double> inv_freq = frequencies(rotary);
        const Tensor table = poisoned(DType::f32, {positions, rotary / 2, 2});
        rope_table(ctx_, table, upload(std::span<const double>(inv_freq)), magnitude);
        return table;
    }
};

TEST_F(RopeTest, AnglesAreExactFarOut) {
    const std::int64_t positions = 3'000'001;
    for (const double magnitude : {1.0, 1.25}) {
        memory_.reset();
        const int rotary = 20;
        const std::vector<double> inv_freq = frequencies(rotary);
        const Tensor table = table_of(positions, rotary, magnitude);
        for (const std::int64_t p :
             {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, std::int64_t{4095},
              std::int64_t{131071}, std::int64_t{1000003}, positions - 1}) {
            const std::vector<float> row = download(table.row<float>(p * rotary / 2), rotary);
            for (std::size_t i = 0; i < inv_freq.size(); ++i) {
                const long double angle = static_cast<long double>(p) * inv_freq[i];
                // The angle is rounded once to f64, the result once to f32.
                const double error =
                    magnitude * (std::abs(static_cast<double>(angle)) * 0x1p-53 + 2 * kRoundoff);
                EXPECT_NEAR(row[2 * i], static_cast<double>(std::cos(angle)) * magnitude, error);
                EXPECT_NEAR(row[2 * i + 1], static_cast<double>(std::sin(angle)) * magnitude,
                            error);
            }
        }
    }
}

struct Case {
    int heads, kv_heads, dim, rotary;
};
constexpr Case kCases[] = {{1, 1, 2, 2},     {3, 1, 7, 6},   {2, 2, 10, 10}, {6, 6, 48, 48},
                           {4, 2, 64, 64},   {5, 5, 80, 20}, {8, 1, 96, 30}, {32, 8, 128, 128},
                           {4, 4, 256, 256}, {12, 12, 64, 0}};

// Three sequences on shuffled pages: a prompt that crosses pages, a decoding one, a far one.
class QkvFinishTest : public RopeTest {
  protected:
    static constexpr int kPageTokens = 16, kPages = 24, kMaxPages = 4;
    static constexpr std::int64_t kPositions = 96;  // once around the table, and on

    void make_batch() {
        const int counts[] = {19, 1, 3}, starts[] = {5, 0, 77};
        std::vector<std::int32_t> shuffled(kPages);
        for (int i = 0; i < kPages; ++i) shuffled[static_cast<std::size_t>(i)] = i;
        std::shuffle(shuffled.begin(), shuffled.end(), random_);
        pages_.assign(shuffled.begin(), shuffled.begin() + 3 * kMaxPages);
        positions_.clear();
        sequence_.clear();
        for (int s = 0; s < 3; ++s) {
            for (int i = 0; i < counts[s]; ++i) {
                positions_.push_back(starts[s] + i);
                sequence_.push_back(s);
            }
        }
        batch_.tokens = static_cast<int>(positions_.size());
        batch_.sequences = 3;
        batch_.positions = upload(std::span<const std::int32_t>(positions_));
        batch_.sequence = upload(std::span<const std::int32_t>(sequence_));
        batch_.pages = upload(std::span<const std::int32_t>(pages_));
        batch_.max_pages = kMaxPages;
    }
    // The cache's index of element d of `head` of a token.
    std::size_t place(const Case& c, std::size_t token, int head, int d) const {
        const int position = positions_[token];
        const int page = pages_[static_cast<std::size_t>(
            sequence_[token] * kMaxPages + ops::table_entry(position / kPageTokens, kMaxPages))];
        return static_cast<std::size_t>(
            ((page * c.kv_heads + head) * kPageTokens + position % kPageTokens) * c.dim + d);
    }
    ops::PagedKv cache_of(DType type, const Case& c) {
        const Shape shape{kPages, c.kv_heads, kPageTokens, c.dim};
        return {poisoned(type, shape), poisoned(type, shape)};
    }

    std::vector<std::int32_t> positions_, sequence_, pages_;
    ops::DeviceBatch batch_;
};

TEST_F(QkvFinishTest, MatchesF64) {
    struct Types {
        DType qkv, q, cache;
    };
    std::vector<Types> all_types;
    for (const DType type : kTypes) {
        for (const DType cache : kTypes) all_types.push_back({type, type, cache});
    }
    all_types.push_back({DType::f32, DType::bf16, DType::f16});
    all_types.push_back({DType::f32, DType::f16, DType::bf16});
    all_types.push_back({DType::bf16, DType::f32, DType::bf16});
    for (const Case& c : kCases) {
        for (const Types& types : all_types) {
            for (const bool with_bias : {false, true}) {
                for (const bool with_norm : {false, true}) {
                    memory_.reset();
                    make_batch();
                    const int all = c.heads + 2 * c.kv_heads;
                    const std::size_t width = static_cast<std::size_t>(all * c.dim);
                    const std::int64_t tokens = batch_.tokens;
                    std::vector<float> qkv = normal(static_cast<std::size_t>(tokens) * width);
                    std::vector<float> bias = normal(width);
                    std::vector<float> q_weight = normal(static_cast<std::size_t>(c.dim));
                    std::vector<float> k_weight = normal(static_cast<std::size_t>(c.dim));
                    QkvFinish f;
                    f.q_out = poisoned(types.q, {tokens, c.heads, c.dim});
                    f.kv = cache_of(types.cache, c);
                    f.qkv = upload(types.qkv, {tokens, all * c.dim}, qkv);
                    if (with_bias) f.bias = upload(DType::f32, {all * c.dim}, bias);
                    if (with_norm) {
                        f.q_norm = upload(DType::f32, {c.dim}, q_weight);
                        f.k_norm = upload(DType::f32, {c.dim}, k_weight);
                        f.norm_eps = kEps;
                    }
                    std::vector<float> rotations;
                    if (c.rotary > 0) {
                        f.rope = table_of(kPositions, c.rotary, 1.1);
                        rotations = download(f.rope);
                    }
                    qkv_finish(ctx_, f, batch_);
                    const std::vector<float> q = download(f.q_out);
                    const std::vector<float> keys = download(f.kv.keys);
                    const std::vector<float> values = download(f.kv.values);
                    std::vector<bool> written(keys.size(), false);
                    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
                        for (int head = 0; head < all; ++head) {
                            const bool is_q = head < c.heads;
                            const bool is_v = head >= c.heads + c.kv_heads;
                            std::vector<double> x, error;
                            const std::size_t from = static_cast<std::size_t>(head * c.dim);
                            double squares = 0;
                            for (std::size_t d = 0; d < static_cast<std::size_t>(c.dim); ++d) {
                                double v = qkv[t * width + from + d];
                                if (with_bias) v += double{bias[from + d]};
                                x.push_back(v);
                                error.push_back(with_bias ? kRoundoff * std::abs(v) : 0);
                                squares += v * v;
                            }
                            if (with_norm && !is_v) {
                                const double factor = 1 / std::sqrt(squares / c.dim + double{kEps});
                                const std::vector<float>& w = is_q ? q_weight : k_weight;
                                for (std::size_t d = 0; d < x.size(); ++d) {
                                    x[d] *= factor * double{w[d]};
                                    // Sum 14 roundoffs, halved; bias, rsqrtf, three products.
                                    error[d] = 18 * kRoundoff * std::abs(x[d]);
                                }
                            }
                            for (int i = 0; 2 * i < c.rotary && !is_v; ++i) {
                                const auto at = static_cast<std::size_t>(2 * i);
                                const std::size_t rotation =
                                    static_cast<std::size_t>(positions_[t] * c.rotary) + at;
                                const double cosine = rotations[rotation],
                                             sine = rotations[rotation + 1];
                                const double a = x[at], b = x[at + 1];
                                x[at] = a * cosine - b * sine;
                                x[at + 1] = a * sine + b * cosine;
                                const double e =
                                    1.1 * (error[at] + error[at + 1] +
                                           2 * kRoundoff * (std::abs(a) + std::abs(b)));
                                error[at] = error[at + 1] = e;
                            }
                            const DType type = is_q ? types.q : types.cache;
                            for (int d = 0; d < c.dim; ++d) {
                                const auto at = static_cast<std::size_t>(d);
                                float got = 0;
                                if (is_q) {
                                    got = q[(t * static_cast<std::size_t>(c.heads) +
                                             static_cast<std::size_t>(head)) *
                                                static_cast<std::size_t>(c.dim) +
                                            at];
                                } else {
                                    const int kv_head =
                                        is_v ? head - c.heads - c.kv_heads : head - c.heads;
                                    const std::size_t where = place(c, t, kv_head, d);
                                    got = (is_v ? values : keys)[where];
                                    written[where] = true;
                                }
                                double bound = error[at];
                                if (type != DType::f32) {
                                    bound += epsilon(type) * (std::abs(x[at]) + error[at]) +
                                             (type == DType::f16 ? 0x1p-25 : 0);
                                }
                                ASSERT_NEAR(got, x[at], bound)
                                    << "heads " << c.heads << "/" << c.kv_heads << " of " << c.dim
                                    << " rotating " << c.rotary << ", token " << t << " head "
                                    << head << " at " << d << ", " << dtype_name(types.qkv) << " "
                                    << dtype_name(type) << (with_bias ? " bias" : "")
                                    << (with_norm ? " norm" : "");
                            }
                        }
                    }
                    for (std::size_t i = 0; i < keys.size(); ++i) {  // nothing else was touched
                        ASSERT_EQ(std::isnan(keys[i]), !written[i]) << i;
                        ASSERT_EQ(std::isnan(values[i]), !written[i]) << i;
                    }
                }
            }
        }
    }
}

// The per-head norm has the bits of the norm op, and the rotation those of the CPU.
TEST_F(QkvFinishTest, HasTheBitsOfItsParts) {
    for (const Case& c : kCases) {
        for (const bool with_norm : {false, true}) {
            memory_.reset();
            make_batch();
            const int all = c.heads + 2 * c.kv_heads;
            const std::int64_t tokens = batch_.tokens;
            std::vector<float> qkv = normal(static_cast<std::size_t>(tokens * all * c.dim));
            std::vector<float> weight = normal(static_cast<std::size_t>(c.dim));
            QkvFinish f;
            f.q_out = poisoned(DType::f32, {tokens, c.heads, c.dim});
            f.kv = cache_of(DType::f32, c);
            f.qkv = upload(DType::f32, {tokens, all * c.dim}, qkv);
            std::vector<float> want = qkv;
            if (with_norm) {
                f.q_norm = f.k_norm = upload(DType::f32, {c.dim}, weight);
                const Tensor heads(f.qkv.data, DType::f32, {tokens * all, c.dim});
                const Tensor normed_heads = poisoned(DType::f32, {tokens * all, c.dim});
                rmsnorm(ctx_, normed_heads, heads, f.q_norm, f.norm_eps);
                want = download(normed_heads);
            }
            std::vector<float> rotations;
            if (c.rotary > 0) {
                f.rope = table_of(kPositions, c.rotary);
                rotations = download(f.rope);
            }
            qkv_finish(ctx_, f, batch_);
            const std::vector<float> q = download(f.q_out), keys = download(f.kv.keys);
            const std::vector<float> values = download(f.kv.values);
            for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
                for (int head = 0; head < c.heads + c.kv_heads; ++head) {
                    float* x = want.data() + (static_cast<std::int64_t>(t) * all + head) * c.dim;
                    for (int i = 0; 2 * i < c.rotary; ++i) {
                        const float* rotation = rotations.data() + positions_[t] * c.rotary + 2 * i;
                        const float a = x[2 * i], b = x[2 * i + 1];
                        x[2 * i] = sum(product(a, rotation[0]), -product(b, rotation[1]));
                        x[2 * i + 1] = sum(product(a, rotation[1]), product(b, rotation[0]));
                    }
                    for (int d = 0; d < c.dim; ++d) {
                        const float got = head < c.heads
                                              ? q[(t * static_cast<std::size_t>(c.heads) +
                                                   static_cast<std::size_t>(head)) *
                                                      static_cast<std::size_t>(c.dim) +
                                                  static_cast<std::size_t>(d)]
                                              : keys[place(c, t, head - c.heads, d)];
                        ASSERT_EQ(got, x[d]) << "dim " << c.dim << " head " << head << " at " << d;
                    }
                }
                for (int head = 0; head < c.kv_heads; ++head) {
                    for (int d = 0; d < c.dim; ++d) {
                        ASSERT_EQ(values[place(c, t, head, d)],
                                  qkv[t * static_cast<std::size_t>(all * c.dim) +
                                      static_cast<std::size_t>(
                                          (c.heads + c.kv_heads + head) * c.dim + d)]);
                    }
                }
            }
        }
    }
}

TEST_F(QkvFinishTest, RowsWithoutAPlaceLeaveTheCacheAlone) {
    const Case c{2, 2, 64, 64};
    make_batch();
    sequence_.assign(sequence_.size(), -1);
    sequence_[0] = 0;
    pages_[0] = -1;  // positions 0 to 15 of the first sequence, including its first row
    batch_.sequence = upload(std::span<const std::int32_t>(sequence_));
    batch_.pages = upload(std::span<const std::int32_t>(pages_));
    std::vector<float> qkv = normal(static_cast<std::size_t>(batch_.tokens) * 6 * 64);
    QkvFinish f;
    f.q_out = poisoned(DType::f32, {batch_.tokens, 2, 64});
    f.kv = cache_of(DType::f16, c);
    f.qkv = upload(DType::f32, {batch_.tokens, 6 * 64}, qkv);
    f.rope = table_of(kPositions, 64);
    qkv_finish(ctx_, f, batch_);
    for (const float v : download(f.kv.keys)) ASSERT_TRUE(std::isnan(v));
    for (const float v : download(f.kv.values)) ASSERT_TRUE(std::isnan(v));
    for (const float v : download(f.q_out)) ASSERT_FALSE(std::isnan(v));
}

TEST_F(QkvFinishTest, LedgerAndContract) {
    const Case c{4, 2, 64, 64};
    make_batch();
    const auto tokens = static_cast<std::uint64_t>(batch_.tokens);
    QkvFinish f;
    f.q_out = poisoned(DType::f16, {batch_.tokens, 4, 64});
    f.kv = cache_of(DType::f16, c);
    f.qkv = poisoned(DType::f32, {batch_.tokens, 8 * 64});
    f.rope = table_of(kPositions, 64);
    ledger_ = {};
    qkv_finish(ctx_, f, batch_);
    const OpRecord& record = ledger_.op(OpKind::rope);
    EXPECT_EQ(record.calls, 1u);
    EXPECT_EQ(record.bytes_read, tokens * (8 * 64 * 4 + 64 * 4));
    EXPECT_EQ(record.bytes_written, tokens * 8 * 64 * 2);
    EXPECT_EQ(record.flops, tokens * 6 * 32 * 6);
    const auto refuse = [&](auto&& spoil) {
        QkvFinish wrong = f;
        spoil(wrong);
        EXPECT_THROW(qkv_finish(ctx_, wrong, batch_), ContractError);
    };
    refuse([&](QkvFinish& w) { w.qkv = poisoned(DType::f32, {batch_.tokens, 7 * 64}); });
    refuse([&](QkvFinish& w) { w.bias = poisoned(DType::f32, {7 * 64}); });
    refuse([&](QkvFinish& w) { w.q_norm = poisoned(DType::f32, {32}); });
    refuse([&](QkvFinish& w) { w.rope = poisoned(DType::f32, {kPositions, 33, 2}); });
    refuse([&](QkvFinish& w) { w.kv.values = poisoned(DType::f32, w.kv.keys.shape); });
}

}  // namespace
}  // namespace mr::cuda::rope_cuda_test
