// Attention of streaming sequences on the GPU, at
// positions far from their beginning, against f64.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/testing.h"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kSinks = 36, kWindow = 300;
constexpr int kEntries = 32, kFronts = 2;  // of a table
constexpr std::int64_t kPages = 40;

class StreamGpu : public GpuTest {
  protected:
    int heads_ = 4, kv_heads_ = 2;

    // Rows of one sequence, the last at `position`: compares decode and prefill with f64.
    void check(int position, int rows, int dim, DType type) {
        SCOPED_TRACE(std::to_string(position) + ": " + std::to_string(rows) + " rows, " +
                     std::to_string(heads_) + " heads of " + std::to_string(dim) + ", " +
                     dtype_name(type));
        memory_.reset();
        const auto kv_heads = static_cast<std::size_t>(kv_heads_);
        const int pairs = dim / 2, first = position - rows + 1;
        const int lo = std::max(0, first - kWindow + 1), base = lo / 32 * 32;
        std::vector<double> frequencies;
        for (int i = 0; i < pairs; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * i / dim));
        const double* inv_freq = upload(std::span<const double>(frequencies));

        // Keys still in the cache: the sinks, and those from the window's first page on.
        std::vector<std::int32_t> positions;
        for (int j = 0; j < kSinks; ++j) positions.push_back(j);
        const auto near = positions.size();
        for (int j = base; j <= position; ++j) positions.push_back(j);
        const auto keys = positions.size();
        std::vector<std::int32_t> table(kEntries, 0x3fffffff), fronts = {7, 3};
        for (int page = base / 32; page <= position / 32; ++page) {
            table[static_cast<std::size_t>(page % kEntries)] = 8 + page - base / 32;
        }
        if (base == 0) table[0] = 7, table[1] = 3;
        const auto place = [&](std::size_t key, int head) {
            const int j = positions[key];
            const std::int64_t page = key < near
                                          ? fronts[static_cast<std::size_t>(j / 32)]
                                          : table[static_cast<std::size_t>(j / 32 % kEntries)];
            return static_cast<std::size_t>(((page * kv_heads_ + head) * 32 + j % 32) * dim);
        };

        // Rotations of all keys and rows, from f64.
        const auto rotations = [&](const std::vector<std::int32_t>& at, bool streams) {
            ops::DeviceBatch batch;
            batch.tokens = static_cast<int>(at.size());
            batch.positions = upload(std::span<const std::int32_t>(at));
            const std::vector<std::int32_t> zeros(at.size(), 0), numbers = {kSinks, kWindow};
            batch.sequence = upload(std::span<const std::int32_t>(zeros));
            if (streams) batch.streams = upload(std::span<const std::int32_t>(numbers));
            RopeRows rope;
            rope.inv_freq = inv_freq;
            rope.rows = poisoned(DType::f32, {batch.tokens, pairs, 2});
            if (streams) rope.sinks = poisoned(DType::f32, {batch.tokens, pairs, 2});
            rope_rows(ctx_, rope, batch);
            return std::pair{download(rope.rows),
                             streams ? download(rope.sinks) : std::vector<float>{}};
        };
        const auto rotate = [&](std::vector<float>& x, const std::vector<float>& by,
                                std::size_t heads) {
            for (std::size_t i = 0; i < x.size(); i += 2) {
                const std::size_t token = i / (heads * static_cast<std::size_t>(dim));
                const std::size_t pair = i / 2 % static_cast<std::size_t>(pairs);
                const float* t = &by[(token * static_cast<std::size_t>(pairs) + pair) * 2];
                const float a = x[i] * t[0] - x[i + 1] * t[1];
                x[i + 1] = x[i] * t[1] + x[i + 1] * t[0];
                x[i] = a;
            }
        };
        const auto count = [&](std::size_t tokens, int heads) {
            return tokens * static_cast<std::size_t>(heads * dim);
        };
        std::vector<float> k = normal(count(keys, kv_heads_)), v = normal(count(keys, kv_heads_));
        std::vector<std::int32_t> of_rows;
        for (int t = 0; t < rows; ++t) of_rows.push_back(first + t);
        std::vector<float> q = normal(count(of_rows.size(), heads_)), q_sinks = q;
        const auto [own, sinks] = rotations(of_rows, true);
        // The rotation itself, against f64.
        for (std::size_t t = 0; t < of_rows.size(); ++t) {
            for (int i = 0; i < pairs; ++i) {
                const auto at = (t * static_cast<std::size_t>(pairs) + static_cast<std::size_t>(i));
                const double f = frequencies[static_cast<std::size_t>(i)];
                const int seen_at = std::min(of_rows[t], kSinks + kWindow - 1);
                ASSERT_NEAR(own[2 * at], std::cos(of_rows[t] * f), 1e-7);
                ASSERT_NEAR(own[2 * at + 1], std::sin(of_rows[t] * f), 1e-7);
                ASSERT_NEAR(sinks[2 * at], std::cos(seen_at * f), 1e-7);
            }
        }
        rotate(q, own, static_cast<std::size_t>(heads_));
        rotate(q_sinks, sinks, static_cast<std::size_t>(heads_));
        rotate(k, rotations(positions, false).first, kv_heads);
        // The second copy of a sink that is also near is the same key.
        for (std::size_t key = near; key < keys; ++key) {
            const auto j = static_cast<std::size_t>(positions[key]);
            if (j >= kSinks) continue;
            const auto width = static_cast<std::size_t>(kv_heads_ * dim);
            std::copy_n(k.begin() + static_cast<std::ptrdiff_t>(j * width), width,
                        k.begin() + static_cast<std::ptrdiff_t>(key * width));
            std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(j * width), width,
                        v.begin() + static_cast<std::ptrdiff_t>(key * width));
        }
        ops::PagedKv kv;
        for (const bool value : {false, true}) {
            std::vector<float>& from = value ? v : k;
            std::vector<float> cache(static_cast<std::size_t>(kPages * kv_heads_ * 32 * dim),
                                     std::numeric_limits<float>::quiet_NaN());
            for (std::size_t key = 0; key < keys; ++key) {
                for (int h = 0; h < kv_heads_; ++h) {
                    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(
                                                   (key * kv_heads + static_cast<std::size_t>(h)) *
                                                   static_cast<std::size_t>(dim)),
                                dim, cache.begin() + static_cast<std::ptrdiff_t>(place(key, h)));
                }
            }
            (value ? kv.values : kv.keys) = upload(type, {kPages, kv_heads_, 32, dim}, cache);
            for (std::size_t key = 0; key < keys; ++key) {  // rounded as on the device
                for (int h = 0; h < kv_heads_; ++h) {
                    std::copy_n(cache.begin() + static_cast<std::ptrdiff_t>(place(key, h)), dim,
                                from.begin() + static_cast<std::ptrdiff_t>(
                                                   (key * kv_heads + static_cast<std::size_t>(h)) *
                                                   static_cast<std::size_t>(dim)));
                }
            }
        }
        const Shape shape{rows, heads_, dim};
        const Tensor asks = upload(type, shape, q), asks_sinks = upload(type, shape, q_sinks);

        ops::DeviceBatch batch;
        batch.tokens = batch.max_count = rows;
        batch.sequences = 1;
        batch.max_keys = position + 1;
        batch.positions = upload(std::span<const std::int32_t>(of_rows));
        const std::vector<std::int32_t> zeros(of_rows.size(), 0), bounds = {0, rows},
                                                                  numbers = {kSinks, kWindow};
        batch.sequence = upload(std::span<const std::int32_t>(zeros));
        batch.first = upload(std::span<const std::int32_t>(bounds));
        batch.pages = upload(std::span<const std::int32_t>(table));
        batch.max_pages = kEntries;
        batch.fronts = upload(std::span<const std::int32_t>(fronts));
        batch.max_fronts = kFronts;
        batch.max_sinks = kSinks;
        batch.max_window = kWindow;
        const float scale = 1 / std::sqrt(static_cast<float>(dim));
        const std::size_t bytes =
            attention_stream_scratch_bytes(rows, heads_, dim, 1024, kSinks, kWindow, rows);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        attention_prepare_scratch(*stream_, ctx_.scratch, rows, heads_);
        const ops::AttentionMask mask{ops::AttentionMask::Kind::causal, 1, kWindow, kSinks};

        std::vector<double> want, tolerance;
        reference(q, q_sinks, k, v, positions, near, of_rows, dim, scale, type, want, tolerance);
        const auto compare = [&](const char* form, bool resident, auto&& run) {
            const Tensor out = poisoned(type, shape);
            ctx_.resident_attention = resident;
            run(out);
            const std::vector<float> got = download(out);
            for (std::size_t i = 0; i < got.size(); ++i) {
                ASSERT_NEAR(got[i], want[i], tolerance[i]) << form << " element " << i;
            }
        };
        for (const bool resident : {true, false}) {
            compare("prefill", resident, [&](Tensor out) {
                attention_prefill(ctx_, out, asks, kv, batch, mask, scale, asks_sinks);
            });
            compare("decode, the mask's sinks", resident, [&](Tensor out) {
                attention_decode(ctx_, out, asks, kv, batch, mask, scale, asks_sinks);
            });
            ops::DeviceBatch streams = batch;
            streams.streams = upload(std::span<const std::int32_t>(numbers));
            streams.max_keys = 1;
            compare("decode, streams", resident, [&](Tensor out) {
                attention_decode(ctx_, out, asks, kv, streams, {}, scale, asks_sinks);
            });
        }
    }

    void reference(const std::vector<float>& q, const std::vector<float>& q_sinks,
                   const std::vector<float>& k, const std::vector<float>& v,
                   const std::vector<std::int32_t>& positions, std::size_t near,
                   const std::vector<std::int32_t>& rows, int dim, float scale, DType type,
                   std::vector<double>& want, std::vector<double>& tolerance) const {
        const auto width = static_cast<std::size_t>(dim);
        const auto heads = static_cast<std::size_t>(heads_);
        const auto kv_heads = static_cast<std::size_t>(kv_heads_);
        for (std::size_t t = 0; t < rows.size(); ++t) {
            for (std::size_t h = 0; h < heads; ++h) {
                const std::size_t kv_head = h / (heads / kv_heads), at = (t * heads + h) * width;
                const int p = rows[t], lo = std::max(0, p - kWindow + 1);
                std::vector<double> weights(positions.size(), 0);
                double most = -INFINITY, sum = 0;
                const auto seen = [&](std::size_t key) {
                    const int j = positions[key];
                    return key < near ? j <= p && j < lo : j <= p && j >= lo;
                };
                for (std::size_t key = 0; key < positions.size(); ++key) {
                    if (!seen(key)) continue;
                    const float* asks = (key < near ? q_sinks : q).data() + at;
                    double dot = 0;
                    for (std::size_t d = 0; d < width; ++d) {
                        dot += double{asks[d]} * k[(key * kv_heads + kv_head) * width + d];
                    }
                    weights[key] = dot * scale;
                    most = std::max(most, weights[key]);
                }
                for (std::size_t key = 0; key < positions.size(); ++key) {
                    if (seen(key)) sum += weights[key] = std::exp(weights[key] - most);
                }
                for (std::size_t d = 0; d < width; ++d) {
                    double value = 0, size = 0;
                    for (std::size_t key = 0; key < positions.size(); ++key) {
                        const double x =
                            weights[key] / sum * v[(key * kv_heads + kv_head) * width + d];
                        value += x;
                        size += std::abs(x);
                    }
                    want.push_back(value);
                    // Weights and results are rounded to the type, a prompt's results twice.
                    tolerance.push_back(type == DType::f32
                                            ? 4e-6
                                            : epsilon(type) * (2 * size + 2 * std::abs(value)) +
                                                  1e-5);
                }
            }
        }
    }
};

TEST_F(StreamGpu, FarPositionsAreAsExactAsNearOnes) {
    for (const int position : {40, 299, 310, 335, 340, 600, 1000, 100000, 1000000, 4000000}) {
        for (const int rows : {1, 9, 130}) {
            if (rows > position + 1) continue;
            for (const int dim : {64, 80, 128}) {
                for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
                    check(position, rows, dim, type);
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

// Near the beginning, where sinks start to leave the window, and far from it.
constexpr int kSomePositions[] = {310, 340, 100000, 4000000};

// The flash forwards do not support heads of 104; 256 is the largest size.
TEST_F(StreamGpu, OtherHeadSizes) {
    for (const int position : kSomePositions) {
        for (const int rows : {1, 9, 70}) {
            for (const int dim : {96, 104, 256}) {
                for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
                    check(position, rows, dim, type);
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

// Groups of more than 8 heads per kv head, multiples of eight and others.
TEST_F(StreamGpu, ManyHeadsShareTheirKeys) {
    for (const auto& [heads, kv_heads] : {std::pair{24, 2}, std::pair{16, 1}, std::pair{9, 1}}) {
        heads_ = heads;
        kv_heads_ = kv_heads;
        for (const int position : kSomePositions) {
            for (const int rows : {1, 9, 70}) {
                for (const int dim : {64, 96, 128, 256}) {
                    for (const DType type : {DType::f32, DType::bf16}) {
                        check(position, rows, dim, type);
                        if (HasFatalFailure()) return;
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
