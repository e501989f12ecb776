// The setting of the tests of attention over a cache: ragged batches over scattered pages of a
// cache that is NaN wherever nothing was written, and their f64 results on the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "core/error.h"
#include "ops/attention/mask_testing.h"
#include "ops/attention/paged/attention_cuda.h"

namespace mr::cuda::paged {

using ops::AttentionMask;
using ops::DeviceBatch;
using ops::PagedKv;

constexpr AttentionMask kCausal{};
constexpr AttentionMask kWindow{AttentionMask::Kind::causal, 1, 37};
constexpr AttentionMask kNarrowWindow{AttentionMask::Kind::causal, 1, 5};  // less than a page
constexpr AttentionMask kItself{AttentionMask::Kind::causal, 1, 1};
constexpr AttentionMask kWideWindow{AttentionMask::Kind::causal, 1, 700};
constexpr AttentionMask kBlocks{AttentionMask::Kind::block_causal, 16, 0};
constexpr AttentionMask kBlocksWindow{AttentionMask::Kind::block_causal, 7, 90, 0, 3};
constexpr AttentionMask kFull{AttentionMask::Kind::full, 1, 0};
constexpr AttentionMask kFullWindow{AttentionMask::Kind::full, 1, 70};
// Sinks: a few, some that end in a second part, and more parts of them than are combined at once.
constexpr AttentionMask kSinks{AttentionMask::Kind::causal, 1, 37, 4};
constexpr AttentionMask kBlocksSinks{AttentionMask::Kind::block_causal, 7, 90, 67, 5};
constexpr AttentionMask kManySinks{AttentionMask::Kind::full, 1, 100, 330};
constexpr AttentionMask kMasks[] = {kCausal, kWindow,     kWideWindow, kBlocks,      kBlocksWindow,
                                    kFull,   kFullWindow, kSinks,      kBlocksSinks, kManySinks};

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

// Prefill has two kernels on sm_90a; `steps` is the one for every device with tensor cores.
enum class Form { decode, prefill, steps, chosen };
constexpr Form kForms[] = {Form::decode, Form::prefill, Form::steps};

using ops::reference::sees;

// Whether one of the item's rows sees a key of its sequence's page.
inline bool any_sees(const AttentionMask& mask, const Item& item, int page) {
    for (int key = 32 * page; key < std::min(32 * page + 32, item.keys); ++key) {
        for (int t = item.keys - item.count; t < item.keys; ++t) {
            if (sees(mask, t, key)) return true;
        }
    }
    return false;
}

class AttentionGpu : public GpuTest {
  protected:
    // Sequences with all their q, k and v, rounded as on the device, and a cache that holds them.
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
        int total = 3;  // pages that belong to no sequence
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
        run.batch.max_pages =
            static_cast<int>(std::bit_ceil(static_cast<unsigned>(run.batch.max_keys + 31) / 32));
        for (const Item& item : items) {
            // Pages past the sequence's own must not be read.
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
        // With room for the parts of sinks.
        const std::size_t bytes =
            attention_stream_scratch_bytes(rows, s.heads, s.dim, max_keys + 1024, 0, 1, rows);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
        attention_prepare_scratch(*stream_, ctx_.scratch, rows, s.heads);
    }
    void launch_form(Form form, const World& w, const Run& run, const AttentionMask& mask,
                     float scale = 0) {
        const auto f = form == Form::decode   ? attention_decode
                       : form == Form::chosen ? attention
                                              : attention_prefill;
        ctx_.resident_attention = form != Form::steps;
        f(ctx_, run.out, run.q, w.kv, run.batch, mask, scale > 0 ? scale : w.s.scale(), {});
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
    // Decode without a graph, with other scratch and another grid.
    std::vector<float> compute_from(const World& w, const std::vector<Item>& items) {
        const std::span<std::byte> scratch = ctx_.scratch;
        std::vector<float> out = compute(Form::decode, w, items, kCausal);
        ctx_.scratch = scratch;
        return out;
    }
    // Releases everything after `used`: the arena can only start over.
    void release(std::size_t used) {
        memory_.reset();
        if (used > 0) memory_.alloc(used);
    }

    // The expected result of one (row, head), with an error bound for every column.
    struct Want {
        std::size_t row;  // in the batch
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
        const double sum_eps = 0x1p-23;  // tensor cores truncate where others round
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
        // Errors of the scores shift weight between keys: by at most a fraction of every weight,
        // and the shifts sum to zero, so the heaviest key's value may be subtracted.
        const auto heaviest =
            static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
        std::vector<double> magnitude(columns), apart(columns), most(columns);
        want.value.assign(columns, 0);
        want.tolerance.resize(columns);
        for (std::size_t i = 0; i < p.size(); ++i) {
            for (std::size_t d = 0; d < columns; ++d) {
                want.value[d] += p[i] / total * v[i][d];
                magnitude[d] += p[i] / total * std::abs(v[i][d]);
                apart[d] += p[i] / total * std::abs(double{v[i][d]} - v[heaviest][d]);
                most[d] = std::max(most[d], std::abs(double{v[i][d]}));
            }
        }
        const auto n = static_cast<double>(p.size());
        const double shift = std::expm1(2 * score_error);
        const double relative = 2 * p_eps + (n + 64) * sum_eps;
        for (std::size_t d = 0; d < columns; ++d) {
            want.tolerance[d] = shift * std::min(magnitude[d], apart[d]) + relative * magnitude[d] +
                                2 * n * p_tiny * most[d] +
                                1.01 * epsilon(s.q) * std::abs(want.value[d]) + 1e-7;
        }
    }

    // About `per_item` rows of every item, including the first and the last; kAllRows: all.
    static constexpr int kAllRows = 1 << 20;
    static std::vector<Want> wanted(const World& w, const std::vector<Item>& items,
                                    const AttentionMask& mask, float scale, int per_item) {
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
        return wants;
    }
    // All results are finite, and the selected rows are near f64.
    void expect_near(const World& w, const std::vector<Item>& items, const AttentionMask& mask,
                     float scale, const std::vector<float>& got, int per_item = 4) {
        expect_near(w, items, mask, wanted(w, items, mask, scale, per_item), got);
    }
    void expect_near(const World& w, const std::vector<Item>& items, const AttentionMask& mask,
                     const std::vector<Want>& wants, const std::vector<float>& got) {
        const Shapes& s = w.s;
        int rows = 0;
        for (const Item& item : items) rows += item.count;
        ASSERT_EQ(got.size(), static_cast<std::size_t>(rows * s.heads * s.dim));
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
                    << mask.window << " sinks " << mask.sinks;
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

}  // namespace mr::cuda::paged
