// Attention of a streaming sequence, at positions far from its beginning, against f64.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "core/philox.h"
#include "core/thread_pool.h"
#include "ops/attention/paged/attention.h"
#include "ops/rope/rope.h"

namespace mr::ops::stream_test {
namespace {

constexpr int kDim = 64, kSinks = 4, kWindow = 90;

std::vector<float> normal(std::uint64_t seed, std::size_t count) {
    std::vector<float> out;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto bits = philox(seed, i);
        const double u = (bits[0] + 1.0) / 4294967297.0, v = bits[1] / 4294967296.0;
        out.push_back(
            static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v)));
    }
    return out;
}

std::vector<double> inverse_frequencies() {
    std::vector<double> out;
    for (int i = 0; i < kDim / 2; ++i) out.push_back(std::pow(10000.0, -2.0 * i / kDim));
    return out;
}

// The dot product of a query rotated to position p and a key rotated to position j.
double rotated_dot(const float* q, std::int64_t p, const float* k, std::int64_t j) {
    double sum = 0;
    const std::vector<double> frequencies = inverse_frequencies();
    for (int i = 0; i < kDim / 2; ++i) {
        const double angle = static_cast<double>(p - j) * frequencies[static_cast<std::size_t>(i)];
        const double q0 = q[i], q1 = q[i + kDim / 2], k0 = k[i], k1 = k[i + kDim / 2];
        sum += std::cos(angle) * (q0 * k0 + q1 * k1) + std::sin(angle) * (q0 * k1 - q1 * k0);
    }
    return sum;
}

class FarPositions : public ::testing::TestWithParam<int> {};

TEST_P(FarPositions, AreAsExactAsNearOnes) {
    const int p = GetParam(), lo = p - kWindow + 1;
    ThreadPool pool(1);
    std::vector<std::byte> scratch(attention_scratch_bytes(kDim, 1));
    Context ctx;
    ctx.pool = &pool;
    ctx.scratch = scratch;
    const std::vector<double> frequencies = inverse_frequencies();
    const auto rotate = [&](std::vector<float>& x, std::span<const std::int32_t> positions) {
        const auto tokens = static_cast<std::int64_t>(positions.size());
        std::vector<float> table(positions.size() * kDim);
        const Tensor cos_sin(table.data(), DType::f32, {tokens, kDim / 2, 2});
        rope_table(ctx, cos_sin, positions, frequencies, 1.0);
        rope(ctx, Tensor(x.data(), DType::f32, {tokens, 1, kDim}), cos_sin, RopeStyle::half);
    };
    // Pages: 0 holds the sinks, 1 to 4 the window, in a table of 8 entries.
    const int base = lo / 32 * 32, last = p / 32;
    std::vector<float> keys(8 * 32 * kDim, NAN), values(8 * 32 * kDim, NAN);
    const PagedKv kv{Tensor(keys.data(), DType::f32, {8, 1, 32, kDim}),
                     Tensor(values.data(), DType::f32, {8, 1, 32, kDim})};
    std::vector<std::int32_t> table(8, -1), front = {0};
    for (int i = base / 32; i <= last; ++i) {
        table[static_cast<std::size_t>(i % 8)] = 1 + i - base / 32;
    }
    std::vector<std::int32_t> seen;
    for (int j = 0; j < kSinks; ++j) seen.push_back(j);
    for (int j = lo; j <= p; ++j) seen.push_back(j);
    const std::vector<float> raw = normal(1, seen.size() * kDim), v = normal(2, seen.size() * kDim);
    std::vector<float> turned = raw;
    rotate(turned, seen);
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const int j = seen[i];
        const int page = j < kSinks ? 0 : table[static_cast<std::size_t>(j / 32 % 8)];
        const auto at = static_cast<std::size_t>((page * 32 + j % 32) * kDim);
        std::copy_n(turned.data() + i * kDim, kDim, keys.data() + at);
        std::copy_n(v.data() + i * kDim, kDim, values.data() + at);
    }
    const std::vector<float> q = normal(3, kDim);
    std::vector<float> own = q, sinks = q, out(kDim);
    const std::int32_t here[] = {p}, there[] = {kSinks + kWindow - 1};
    rotate(own, here);
    rotate(sinks, there);
    const Shape shape{1, 1, kDim};
    const BatchSeq seq{0, 1, p, table, base, front};
    attention(ctx, Tensor(out.data(), DType::f32, shape), Tensor(own.data(), DType::f32, shape), kv,
              {&seq, 1}, {.window = kWindow, .sinks = kSinks}, default_scale(kDim),
              Tensor(sinks.data(), DType::f32, shape));

    std::vector<double> scores;
    double most = -INFINITY, sum = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const std::int64_t from = seen[i] < kSinks ? kSinks + kWindow - 1 : p;
        scores.push_back(rotated_dot(q.data(), from, raw.data() + i * kDim, seen[i]) /
                         std::sqrt(static_cast<double>(kDim)));
        most = std::max(most, scores.back());
    }
    for (double& score : scores) sum += score = std::exp(score - most);
    for (int d = 0; d < kDim; ++d) {
        double expected = 0;
        for (std::size_t i = 0; i < seen.size(); ++i) {
            expected += scores[i] / sum * v[i * kDim + static_cast<std::size_t>(d)];
        }
        // Rotations of keys and the query are rounded to f32 once each, at any position.
        EXPECT_NEAR(out[static_cast<std::size_t>(d)], expected, 3e-6) << d;
    }
}

INSTANTIATE_TEST_SUITE_P(Stream, FarPositions, ::testing::Values(1000, 100000, 1000000, 4000000),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace mr::ops::stream_test
