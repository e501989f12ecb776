// Attention on the GPU against f64 on the host: ragged batches over scattered pages of a cache that
// is NaN wherever nothing was written.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "core/cuda/testing.h"
#include "core/error.h"
#include "ops/attention/attention_cuda.h"

namespace mr::cuda {
namespace {

using ops::AttentionMask;
using ops::DeviceBatch;
using ops::PagedKv;

constexpr AttentionMask kCausal{};
constexpr AttentionMask kWindow{AttentionMask::Kind::causal, 1, 37};
constexpr AttentionMask kWideWindow{AttentionMask::Kind::causal, 1, 700};
constexpr AttentionMask kBlocks{AttentionMask::Kind::block_causal, 16, 0};
constexpr AttentionMask kBlocksWindow{AttentionMask::Kind::block_causal, 7, 90};
constexpr AttentionMask kFull{AttentionMask::Kind::full, 1, 0};
constexpr AttentionMask kFullWindow{AttentionMask::Kind::full, 1, 70};
constexpr AttentionMask kMasks[] = {kCausal,       kWindow, kWideWindow, kBlocks,
                                    kBlocksWindow, kFull,   kFullWindow};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shapes {
    int heads, kv_heads, dim;
    DType q, cache;
    float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
    std::string str() const {
        return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
               std::to_string(dim) + ", q " + dtype_name(q) + ", cache " + dtype_name(cache);
    }
};

// Rows of one sequence in a batch: the last `count` of its first `keys` positions.
struct Item {
    int seq, keys, count;
};

enum class Form { decode, prefill, chosen };

bool sees(const AttentionMask& mask, int query, int key) {
    if (mask.window > 0 && query - key >= mask.window) return false;
    switch (mask.kind) {
        case AttentionMask::Kind::causal:
            return key <= query;
        case AttentionMask::Kind::block_causal:
            return key / mask.block <= query / mask.block;
        case AttentionMask::Kind::full:
            return true;
    }
    return false;
}

class AttentionGpu : public GpuTest {
  protected:
    // Sequences with all their q, k and v, as the device has them, and a cache that holds them.
    struct World {
        Shapes s;
        std::vector<int> lengths;
        std::vector<std::vector<float>> q, k, v;  // [length, heads or kv_heads, dim]
        std::vector<std::vector<std::int32_t>> pages;
        PagedKv kv;
    };

    static float rounded(DType dtype, float x) {
        if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
        return dtype == DType::f16 ? f16_to_f32(f32_to_f16(x)) : x;
    }
    std::vector<float> values(DType dtype, std::size_t count, float deviation) {
        std::vector<float> out = normal(count, deviation);
        for (float& x : out) x = rounded(dtype, x);
        return out;
    }

    World make_world(const Shapes& s, std::vector<int> lengths, float deviation = 1) {
        World w{s, std::move(lengths), {}, {}, {}, {}, {}};
        int total = 3;  // pages that nobody has
        for (const int length : w.lengths) total += (length + 31) / 32;
        std::vector<std::int32_t> deal(static_cast<std::size_t>(total));
        std::iota(deal.begin(), deal.end(), 0);
        std::shuffle(deal.begin(), deal.end(), random_);
        for (const int length : w.lengths) {
            const auto n = static_cast<std::size_t>(length) * static_cast<std::size_t>(s.dim);
            w.q.push_back(values(s.q, n * static_cast<std::size_t>(s.heads), deviation));
            w.k.push_back(values(s.cache, n * static_cast<std::size_t>(s.kv_heads), deviation));
            w.v.push_back(values(s.cache, n * static_cast<std::size_t>(s.kv_heads), 1));
            w.pages.emplace_back();
            for (int at = 0; at < length; at += 32) {
                w.pages.back().push_back(deal.back());
                deal.pop_back();
            }
        }
        upload_cache(w, total);
        return w;
    }
    void upload_cache(World& w, int total) {
        const Shapes& s = w.s;
        const Shape shape{total, s.kv_heads, 32, s.dim};
        for (int which = 0; which < 2; ++which) {
            std::vector<float> cache(static_cast<std::size_t>(shape.count()), kNan);
            for (std::size_t i = 0; i < w.lengths.size(); ++i) {
                for (int t = 0; t < w.lengths[i]; ++t) {
                    const std::int64_t page = w.pages[i][static_cast<std::size_t>(t / 32)];
                    for (int h = 0; h < s.kv_heads; ++h) {
                        const float* from = (which ? w.v : w.k)[i].data() +
                                            (std::int64_t{t} * s.kv_heads + h) * s.dim;
                        std::copy_n(
                            from, s.dim,
                            cache.begin() + ((page * s.kv_heads + h) * 32 + t % 32) * s.dim);
                    }
                }
            }
            (which ? w.kv.values : w.kv.keys) = upload(s.cache, shape, cache);
        }
    }

    // A batch in device memory, its q and its poisoned out.
    struct Run {
        DeviceBatch batch;
        Tensor q, out;
        std::int32_t* positions = nullptr;
        int rows = 0;
    };
    Run prepare(const World& w, const std::vector<Item>& items, int max_keys = 0,
                int rows_before = 0) {
        const Shapes& s = w.s;
        Run run;
        std::vector<std::int32_t> first{rows_before}, positions, sequence, pages;
        std::vector<float> q;
        const std::int64_t width = std::int64_t{s.heads} * s.dim;
        positions.assign(static_cast<std::size_t>(rows_before), 12345678);
        sequence.assign(static_cast<std::size_t>(rows_before), 12345678);
        q.assign(static_cast<std::size_t>(rows_before * width), kNan);
        run.batch.max_keys = 1;
        for (const Item& item : items) {
            for (int t = item.keys - item.count; t < item.keys; ++t) {
                positions.push_back(t);
                sequence.push_back(static_cast<std::int32_t>(first.size()) - 1);
            }
            const std::vector<float>& from = w.q[static_cast<std::size_t>(item.seq)];
            q.insert(q.end(), from.begin() + (item.keys - item.count) * width,
                     from.begin() + item.keys * width);
            first.push_back(first.back() + item.count);
            run.batch.max_count = std::max(run.batch.max_count, item.count);
            run.batch.max_keys = std::max(run.batch.max_keys, item.keys);
        }
        run.rows = first.back();
        if (max_keys > 0) run.batch.max_keys = max_keys;
        run.batch.max_pages = (run.batch.max_keys + 31) / 32;
        for (const Item& item : items) {
            // Pages past the sequence's own are not to be looked at.
            std::vector<std::int32_t> own(static_cast<std::size_t>(run.batch.max_pages),
                                          0x3fffffff);
            const auto n = static_cast<std::ptrdiff_t>((item.keys + 31) / 32);
            std::copy_n(w.pages[static_cast<std::size_t>(item.seq)].begin(), n, own.begin());
            pages.insert(pages.end(), own.begin(), own.end());
        }
        run.batch.tokens = run.rows;
        run.batch.sequences = static_cast<int>(items.size());
        run.positions = upload(std::span<const std::int32_t>(positions));
        run.batch.positions = run.positions;
        run.batch.sequence = upload(std::span<const std::int32_t>(sequence));
        run.batch.first = upload(std::span<const std::int32_t>(first));
        run.batch.pages = upload(std::span<const std::int32_t>(pages));
        run.q = upload(s.q, {run.rows, s.heads, s.dim}, q);
        run.out = poisoned(s.q, {run.rows, s.heads, s.dim});
        return run;
    }
    void give_scratch(const Shapes& s, int rows, int max_keys) {
        const std::size_t bytes = attention_scratch_bytes(rows, s.heads, s.dim, max_keys);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
        attention_prepare_scratch(*stream_, ctx_.scratch, rows, s.heads);
    }
    void launch_form(Form form, const World& w, const Run& run, const AttentionMask& mask,
                     float scale = 0) {
        const auto f = form == Form::decode    ? attention_decode
                       : form == Form::prefill ? attention_prefill
                                               : attention;
        f(ctx_, run.out, run.q, w.kv, run.batch, mask, scale > 0 ? scale : w.s.scale());
    }
    std::vector<float> compute(Form form, const World& w, const std::vector<Item>& items,
                               const AttentionMask& mask, int max_keys = 0, float scale = 0) {
        const std::size_t used = memory_.used();
        const Run run = prepare(w, items, max_keys);
        give_scratch(w.s, run.rows, run.batch.max_keys);
        launch_form(form, w, run, mask, scale);
        std::vector<float> out = download(run.out);
        release(used);
        return out;
    }
    // Decode without a graph, on other scratch and another grid.
    std::vector<float> compute_from(const World& w, const std::vector<Item>& items) {
        const std::span<std::byte> scratch = ctx_.scratch;
        std::vector<float> out = compute(Form::decode, w, items, kCausal);
        ctx_.scratch = scratch;
        return out;
    }
    // Back to what was taken before: the arena only knows how to begin again.
    void release(std::size_t used) {
        memory_.reset();
        if (used > 0) memory_.alloc(used);
    }

    // What one (row, head) should be, and how far off it may be, for every column.
    struct Want {
        std::size_t row;  // of the batch
        const Item* item;
        int position, head;
        std::vector<double> value, tolerance;
    };
    static void reference(const World& w, const AttentionMask& mask, float scale, Want& want) {
        const Shapes& s = w.s;
        const auto seq = static_cast<std::size_t>(want.item->seq);
        const double p_eps = s.q == s.cache && s.q != DType::f32 ? epsilon(s.q) : 0;
        // A weight below the smallest f16 is rounded to a multiple of 2^-24.
        const double p_tiny = s.q == s.cache && s.q == DType::f16 ? 0x1p-25 : 0;
        const double sum_eps = 0x1p-23;  // tensor cores cut off where others round
        const int kv_head = want.head / (s.heads / s.kv_heads);
        const float* q =
            w.q[seq].data() + (std::int64_t{want.position} * s.heads + want.head) * s.dim;
        std::vector<double> p;
        std::vector<const float*> v;
        double score_error = 0, top = -INFINITY, total = 0;
        for (int key = 0; key < want.item->keys; ++key) {
            if (!sees(mask, want.position, key)) continue;
            const std::int64_t at = (std::int64_t{key} * s.kv_heads + kv_head) * s.dim;
            const float* k = w.k[seq].data() + at;
            double dot = 0, magnitude = 0;
            for (int d = 0; d < s.dim; ++d) {
                dot += double{q[d]} * k[d];
                magnitude += std::abs(double{q[d]} * k[d]);
            }
            p.push_back(dot * scale);
            v.push_back(w.v[seq].data() + at);
            score_error = std::max(score_error, (s.dim + 4) * sum_eps * magnitude * scale);
            top = std::max(top, p.back());
        }
        for (double& x : p) total += x = std::exp(x - top);
        const auto columns = static_cast<std::size_t>(s.dim);
        std::vector<double> magnitude(columns), most(columns);
        want.value.assign(columns, 0);
        want.tolerance.resize(columns);
        for (std::size_t i = 0; i < p.size(); ++i) {
            for (std::size_t d = 0; d < columns; ++d) {
                want.value[d] += p[i] / total * v[i][d];
                magnitude[d] += p[i] / total * std::abs(v[i][d]);
                most[d] = std::max(most[d], std::abs(double{v[i][d]}));
            }
        }
        const auto n = static_cast<double>(p.size());
        const double relative = std::expm1(2 * score_error) + 2 * p_eps + (n + 64) * sum_eps;
        for (std::size_t d = 0; d < columns; ++d) {
            want.tolerance[d] = relative * magnitude[d] + 2 * n * p_tiny * most[d] +
                                1.01 * epsilon(s.q) * std::abs(want.value[d]) + 1e-7;
        }
    }

    // Everything is finite, and rows of every item, about `per_item` of them, are near f64.
    void expect_near(const World& w, const std::vector<Item>& items, const AttentionMask& mask,
                     float scale, const std::vector<float>& got, int per_item = 4) {
        const Shapes& s = w.s;
        std::vector<Want> wants;
        std::size_t row = 0;
        for (const Item& item : items) {
            const int step = std::max(1, (item.count - 1) / std::max(1, per_item - 1));
            for (int t = 0; t < item.count; ++t, ++row) {
                if (t % step != 0 && t != item.count - 1) continue;
                for (int h = 0; h < s.heads; ++h) {
                    wants.push_back({row, &item, item.keys - item.count + t, h, {}, {}});
                }
            }
        }
        const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
        std::vector<std::thread> workers;
        for (std::size_t first = 0; first < threads; ++first) {
            workers.emplace_back([&, first] {
                for (std::size_t i = first; i < wants.size(); i += threads) {
                    reference(w, mask, scale, wants[i]);
                }
            });
        }
        for (std::thread& worker : workers) worker.join();
        ASSERT_EQ(got.size(), row * static_cast<std::size_t>(s.heads * s.dim));
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(std::isfinite(got[i])) << i;
        for (const Want& want : wants) {
            const std::size_t at = (want.row * static_cast<std::size_t>(s.heads) +
                                    static_cast<std::size_t>(want.head)) *
                                   static_cast<std::size_t>(s.dim);
            for (std::size_t d = 0; d < want.value.size(); ++d) {
                ASSERT_NEAR(got[at + d], want.value[d], want.tolerance[d])
                    << s.str() << ", sequence of " << want.item->keys << ", position "
                    << want.position << ", head " << want.head << ", column " << d << ", mask "
                    << static_cast<int>(mask.kind) << " block " << mask.block << " window "
                    << mask.window;
            }
        }
    }

    // The rows of item `index` in the result of a batch.
    static std::vector<float> rows_of(const World& w, const std::vector<Item>& items,
                                      const std::vector<float>& all, std::size_t index) {
        std::int64_t before = 0;
        for (std::size_t i = 0; i < index; ++i) before += items[i].count;
        const std::int64_t width = std::int64_t{w.s.heads} * w.s.dim;
        return {all.begin() + before * width, all.begin() + (before + items[index].count) * width};
    }
    static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    }
};

constexpr DType kF32 = DType::f32, kF16 = DType::f16, kBf16 = DType::bf16;
constexpr struct {
    DType q, cache;
} kTypes[] = {{kBf16, kBf16}, {kF16, kF16}, {kF32, kF32}, {kF32, kF16}, {kBf16, kF16}};
constexpr int kDims[] = {32, 40, 64, 80, 96, 128, 256};

TEST_F(AttentionGpu, DecodeMatchesF64) {
    const int lengths[] = {1, 31, 32, 33, 63, 64, 65, 127, 1000, 4100};
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{group < 4 ? 2 * group : group, group < 4 ? 2 : 1, dim, types.q,
                           types.cache};
            memory_.reset();
            const World w = make_world(s, {std::begin(lengths), std::end(lengths)});
            std::vector<Item> one;
            for (int i = 0; i < 10; ++i) one.push_back({i, lengths[i], 1});
            for (const AttentionMask& mask : kMasks) {
                const std::vector<float> got = compute(Form::decode, w, one, mask);
                expect_near(w, one, mask, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, DecodeOfSeveralRowsMatchesF64) {
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{2 * group, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {5, 70, 300, 40, 64, 2500});
            const std::vector<Item> items{{0, 5, 5},   {1, 70, 3},  {2, 290, 17},
                                          {3, 40, 40}, {4, 64, 64}, {5, 2400, 7}};
            for (const AttentionMask& mask : kMasks) {
                const std::vector<float> got = compute(Form::decode, w, items, mask);
                expect_near(w, items, mask, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, EveryGroupAndTypeOnTensorCores) {
    for (const int group : {1, 2, 3, 4, 8, 12}) {
        for (const DType dtype : {kBf16, kF16}) {
            const Shapes s{group, 1, 128, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {200, 65, 130});
            const std::vector<Item> items{{0, 200, 1}, {1, 65, 2}, {2, 130, 90}};
            for (const Form form : {Form::decode, Form::prefill}) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                expect_near(w, items, kCausal, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, PrefillMatchesF64) {
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{2 * group, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {65, 127, 400, 1000, 1, 33, 450});
            const std::vector<Item> items{{0, 65, 65}, {1, 127, 127}, {2, 390, 129}, {3, 900, 300},
                                          {4, 1, 1},   {5, 33, 33},   {6, 449, 1}};
            for (const AttentionMask& mask : kMasks) {
                const std::vector<float> got = compute(Form::prefill, w, items, mask);
                expect_near(w, items, mask, s.scale(), got, 6);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, PrefillOfLongSequences) {
    for (const int dim : {64, 128}) {
        const Shapes s{2, 1, dim, kBf16, kBf16};
        memory_.reset();
        const World w = make_world(s, {4100, 1000});
        const std::vector<Item> items{{0, 4100, 4100}, {1, 1000, 1000}};
        for (const AttentionMask& mask : {kCausal, kWideWindow, kFull}) {
            const std::vector<float> got = compute(Form::prefill, w, items, mask);
            expect_near(w, items, mask, s.scale(), got, 9);
            if (HasFatalFailure()) return;
        }
    }
}

// One key has all the weight, another one for every head: a key that is skipped, read from a wrong
// place or read twice shows, which among thousands of equals it would not.
TEST_F(AttentionGpu, NeedlesAreFound) {
    constexpr int kNeedles[] = {0,   1,   15,   16,   31,   32,   33,   63,   64,   65,
                                127, 128, 2047, 2048, 2111, 2303, 2304, 2560, 2698, 2699};
    constexpr int kHeads = 20, kLength = 2700;
    for (const int dim : {48, 64, 80, 96, 128, 256}) {
        for (const DType dtype : {kBf16, kF16, kF32}) {
            const Shapes s{kHeads, kHeads, dim, dtype, dtype};
            memory_.reset();
            World w = make_world(s, {kLength}, 0.1f);
            const auto row = static_cast<std::size_t>(kHeads * dim);
            for (std::size_t h = 0; h < kHeads; ++h) {
                const std::size_t column = h * static_cast<std::size_t>(dim);
                float* q = w.q[0].data() + (kLength - 1) * row + column;
                float* k = w.k[0].data() + static_cast<std::size_t>(kNeedles[h]) * row + column;
                for (int d = 0; d < dim; ++d) {
                    q[d] = rounded(dtype, normal(1)[0]);
                    k[d] = rounded(dtype, 16 * q[d]);
                }
            }
            upload_cache(w, 3 + (kLength + 31) / 32);
            const std::vector<Item> items{{0, kLength, 1}};
            for (const Form form : {Form::decode, Form::prefill}) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                expect_near(w, items, kCausal, s.scale(), got);
                if (HasFatalFailure()) return;
                for (std::size_t h = 0; h < kHeads; ++h) {
                    for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
                        const std::size_t column = h * static_cast<std::size_t>(dim) + d;
                        const double v =
                            w.v[0][static_cast<std::size_t>(kNeedles[h]) * row + column];
                        // The others weigh about exp(-16 sqrt(dim)): nothing.
                        ASSERT_NEAR(got[column], v, 2 * epsilon(dtype) * std::abs(v) + 1e-6)
                            << s.str() << ", key " << kNeedles[h] << ", column " << d;
                    }
                }
            }
        }
    }
}

TEST_F(AttentionGpu, ExtremeScoresStayFinite) {
    for (const int dim : {40, 64, 128, 256}) {
        for (const auto& types : kTypes) {
            const Shapes s{4, 2, dim, types.q, types.cache};
            memory_.reset();
            // Products of 128 elements of deviation 30: scores of about +-1e4 at scale 1.
            const World w = make_world(s, {300, 70, 2200}, 30);
            const std::vector<Item> items{{0, 300, 20}, {1, 70, 70}, {2, 2200, 1}};
            for (const Form form : {Form::decode, Form::prefill}) {
                const std::vector<float> got = compute(form, w, items, kCausal, 0, 1.0f);
                for (const float x : got) ASSERT_TRUE(std::isfinite(x)) << s.str();
            }
        }
    }
}

TEST_F(AttentionGpu, RowsWithoutWeightGiveZeros) {
    for (const int dim : {48, 64, 128}) {
        for (const DType dtype : {kBf16, kF32}) {
            const Shapes s{2, 1, dim, dtype, dtype};
            memory_.reset();
            World w = make_world(s, {70, 100});
            for (float& x : w.q[0]) x = 1;
            for (float& x : w.k[0]) x = -std::numeric_limits<float>::infinity();
            upload_cache(w, 3 + 3 + 4);
            const std::vector<Item> items{{0, 70, 3}, {1, 100, 2}};
            for (const Form form : {Form::decode, Form::prefill}) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                for (const float x : rows_of(w, items, got, 0)) ASSERT_EQ(x, 0.0f) << s.str();
                for (const float x : rows_of(w, items, got, 1)) ASSERT_TRUE(std::isfinite(x));
            }
            // A sequence that stands before its first position has no keys at all.
            for (const Form form : {Form::decode, Form::prefill}) {
                const Run run = prepare(w, {{1, 100, 1}}, 2500);
                const std::int32_t before = -1;
                stream_->to_device(run.positions, &before, 4, nullptr);
                give_scratch(s, 1, 2500);
                launch_form(form, w, run, kCausal);
                for (const float x : download(run.out)) ASSERT_EQ(x, 0.0f) << s.str();
            }
        }
    }
}

TEST_F(AttentionGpu, ARaggedBatchGivesTheBitsOfEachAlone) {
    for (const int dim : {48, 64, 80, 96, 128, 256}) {
        for (const auto& types : kTypes) {
            const Shapes s{4, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {300, 2700, 65, 1, 190, 64});
            const std::vector<Item> items{{0, 300, 2}, {1, 2700, 1}, {2, 65, 65},
                                          {3, 1, 1},   {4, 190, 64}, {5, 64, 1}};
            for (const AttentionMask& mask : {kCausal, kWindow, kWideWindow, kBlocks}) {
                for (const Form form : {Form::decode, Form::prefill}) {
                    const std::vector<float> all = compute(form, w, items, mask);
                    for (std::size_t i = 0; i < items.size(); ++i) {
                        const std::vector<float> alone = compute(form, w, {items[i]}, mask);
                        ASSERT_TRUE(same_bits(rows_of(w, items, all, i), alone))
                            << s.str() << ", item " << i << ", form " << static_cast<int>(form);
                    }
                }
            }
        }
    }
}

// Enough sequences and heads for the kernel whose blocks stay (attention_many.cu); alone, a
// sequence goes the other way. Some have several rows, some none of the last page's keys.
TEST_F(AttentionGpu, ManySequencesGiveTheBitsOfEachAlone) {
    std::vector<int> lengths;
    for (int i = 0; i < 40; ++i) lengths.push_back(1 + i * 137 % 700);
    lengths[7] = 2048, lengths[8] = 64, lengths[9] = 16;
    for (const int dim : {64, 128}) {
        for (const DType dtype : {kBf16, kF16}) {
            for (const int heads : {16, 32}) {
                const Shapes s{heads, 16, dim, dtype, dtype};
                memory_.reset();
                const World w = make_world(s, lengths);
                std::vector<Item> items;
                for (int i = 0; i < 40; ++i) {
                    const int keys = lengths[static_cast<std::size_t>(i)];
                    items.push_back({i, keys, i % 3 == 0 ? std::min(keys, 1 + i % 11) : 1});
                }
                for (const AttentionMask& mask : {kCausal, kWindow, kBlocks}) {
                    const std::vector<float> all = compute(Form::decode, w, items, mask);
                    for (std::size_t i = 0; i < items.size(); ++i) {
                        const std::vector<float> alone = compute(Form::decode, w, {items[i]}, mask);
                        ASSERT_TRUE(same_bits(rows_of(w, items, all, i), alone))
                            << s.str() << ", item " << i;
                    }
                }
            }
        }
    }
}

// A causal row has the bits it would have as the last row of its sequence.
TEST_F(AttentionGpu, BitsDoNotDependOnTheOtherRowsOfTheSequence) {
    for (const int dim : {40, 64, 128}) {
        for (const DType dtype : {kBf16, kF32}) {
            const Shapes s{8, 2, dim, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {2200});
            for (const Form form : {Form::decode, Form::prefill}) {
                for (const AttentionMask& mask : {kCausal, kWindow}) {
                    const std::vector<Item> many{{0, 2100, 60}};
                    const std::vector<float> all = compute(form, w, many, mask);
                    const std::int64_t width = std::int64_t{s.heads} * dim;
                    for (const int t : {0, 1, 7, 8, 11, 40, 59}) {
                        const std::vector<float> alone = compute(form, w, {{0, 2041 + t, 1}}, mask);
                        const std::vector<float> row(all.begin() + t * width,
                                                     all.begin() + (t + 1) * width);
                        ASSERT_TRUE(same_bits(row, alone)) << s.str() << ", row " << t;
                    }
                }
            }
        }
    }
}

TEST_F(AttentionGpu, DecodeBitsDoNotDependOnTheGrid) {
    for (const int dim : {56, 64, 128}) {
        const Shapes s{4, 4, dim, kF16, kF16};
        memory_.reset();
        const World w = make_world(s, {2900, 130, 64});
        const std::vector<Item> items{{0, 2900, 1}, {1, 130, 1}, {2, 64, 1}};
        const std::vector<float> want = compute(Form::decode, w, items, kCausal);
        for (const int max_keys : {2901, 4096, 20000, 500000}) {
            ASSERT_TRUE(same_bits(want, compute(Form::decode, w, items, kCausal, max_keys)))
                << max_keys;
        }
    }
}

TEST_F(AttentionGpu, TwentyRunsGiveTheSameBits) {
    for (const int dim : {64, 72, 128}) {
        const Shapes s{8, 2, dim, kBf16, kBf16};
        memory_.reset();
        const World w = make_world(s, {3000, 500, 129});
        const std::vector<Item> items{{0, 3000, 1}, {1, 500, 3}, {2, 129, 129}};
        for (const Form form : {Form::decode, Form::prefill}) {
            const Run run = prepare(w, items);
            give_scratch(s, run.rows, run.batch.max_keys);
            launch_form(form, w, run, kCausal);
            const std::vector<float> want = download(run.out);
            for (int i = 0; i < 20; ++i) {
                stream_->fill(run.out.data, 0xff, run.out.bytes());
                launch_form(form, w, run, kCausal);
                ASSERT_TRUE(same_bits(want, download(run.out))) << i;
            }
        }
    }
}

// One captured step is replayed while the sequences grow: everything is read from the device.
TEST_F(AttentionGpu, AGraphFollowsThePositions) {
    const Shapes s{4, 2, 128, kBf16, kBf16};
    const World w = make_world(s, {2300, 200});
    const std::vector<Item> start{{0, 2100, 1}, {1, 60, 1}};
    const Run run = prepare(w, {{0, 2300, 1}, {1, 200, 1}}, 2304);  // pages for all of it
    give_scratch(s, run.rows, 2304);
    Tensor q = run.q;
    const Graph graph = Graph::capture(*stream_, [&] {
        for (int i = 0; i < 3; ++i) launch_form(Form::decode, w, run, kCausal);
    });
    for (int step = 0; step < 8; ++step) {
        const std::vector<Item> now{{0, start[0].keys + 25 * step, 1},
                                    {1, start[1].keys + step, 1}};
        const Run direct = prepare(w, now);
        stream_->on_device(q.data, direct.q.data, q.bytes());
        stream_->on_device(run.positions, direct.positions, 8);
        stream_->fill(run.out.data, 0xff, run.out.bytes());
        graph.launch(*stream_);
        const std::vector<float> got = download(run.out);
        expect_near(w, now, kCausal, s.scale(), got);
        ASSERT_TRUE(same_bits(got, compute_from(w, now))) << step;
    }
}

TEST_F(AttentionGpu, ASubBatchTouchesItsOwnRowsAlone) {
    for (const Form form : {Form::decode, Form::prefill}) {
        const Shapes s{4, 2, 64, kF16, kF16};
        memory_.reset();
        const World w = make_world(s, {100, 70, 2200});
        const std::vector<Item> items{{0, 100, 3}, {1, 70, 1}, {2, 2200, 2}};
        const Run run = prepare(w, items, 0, 50);  // 50 rows of somebody else come first
        give_scratch(s, static_cast<int>(items.size()) * 3, run.batch.max_keys);
        launch_form(form, w, run, kCausal);
        const std::vector<float> got = download(run.out);
        const std::size_t before = std::size_t{50} * 4 * 64;
        for (std::size_t i = 0; i < before; ++i) ASSERT_TRUE(std::isnan(got[i])) << i;
        expect_near(w, items, kCausal, s.scale(), {got.begin() + before, got.end()});
    }
}

TEST_F(AttentionGpu, TheFormIsChosenByTheRows) {
    const Shapes s{2, 2, 64, kBf16, kBf16};
    const World w = make_world(s, {200});
    for (const int count : {1, 64, 65, 200}) {
        const std::vector<Item> items{{0, 200, count}};
        const Form form = count <= kDecodeRows ? Form::decode : Form::prefill;
        EXPECT_TRUE(
            same_bits(compute(Form::chosen, w, items, kCausal), compute(form, w, items, kCausal)));
    }
}

TEST_F(AttentionGpu, BrokenContractsAreNamed) {
    const Shapes s{4, 2, 64, kBf16, kBf16};
    const World w = make_world(s, {100});
    const Run run = prepare(w, {{0, 100, 1}});
    const auto go = [&](const Tensor& q, const PagedKv& kv, const DeviceBatch& batch, float scale) {
        attention(ctx_, q, q, kv, batch, kCausal, scale);
    };
    EXPECT_THROW(go(run.q, w.kv, run.batch, 1), ContractError) << "no scratch";
    give_scratch(s, 1, 100);
    EXPECT_NO_THROW(go(run.q, w.kv, run.batch, 1));
    EXPECT_THROW(go(run.q, w.kv, run.batch, 0), ContractError);
    const auto with = [&](void* data, DType dtype, Shape shape) {
        go({data, dtype, shape}, w.kv, run.batch, 1);
    };
    EXPECT_THROW(with(run.q.data, kBf16, {1, 3, 64}), ContractError);
    EXPECT_THROW(with(run.q.data, kBf16, {1, 4, 32}), ContractError);
    EXPECT_THROW(with(nullptr, kBf16, {1, 4, 64}), ContractError);
    EXPECT_THROW(with(static_cast<std::byte*>(run.q.data) + 2, kBf16, {1, 4, 64}), ContractError);
    DeviceBatch batch = run.batch;
    batch.max_pages = 3;
    EXPECT_THROW(go(run.q, w.kv, batch, 1), ContractError);
    batch = run.batch;
    batch.max_keys = 1 << 20;
    batch.max_pages = 1 << 15;
    EXPECT_THROW(go(run.q, w.kv, batch, 1), ContractError) << "scratch for fewer keys";
    PagedKv pages_of_16 = w.kv;
    pages_of_16.keys.shape = pages_of_16.values.shape = {6, 2, 16, 64};
    EXPECT_THROW(go(run.q, pages_of_16, run.batch, 1), ContractError);
}

}  // namespace
}  // namespace mr::cuda
