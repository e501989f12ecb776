#include "ops/attention/paged/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "core/half.h"
#include "ops/attention/mask_testing.h"
#include "ops/simd/testing.h"

namespace mr::ops::attention_test {
namespace {

using namespace testing;

struct Shapes {
    int heads, kv_heads, head_dim, page_tokens;
};

// A cache with pages assigned in scrambled order, poisoned where nothing was written, and the keys
// and values of several sequences in f64 as the cache holds them.
class Cache {
  public:
    Cache(const Shapes& s, DType dtype, int pages) : s_(s), half_(dtype == DType::f16) {
        const Shape shape{pages, s.kv_heads, s.page_tokens, s.head_dim};
        const auto count = static_cast<std::size_t>(shape.count());
        if (half_) {
            halves_.assign(2 * count, 0x7e00);  // NaN
            kv = {{halves_.data(), dtype, shape}, {halves_.data() + count, dtype, shape}};
        } else {
            floats_.assign(2 * count, kPoison);
            kv = {{floats_.data(), dtype, shape}, {floats_.data() + count, dtype, shape}};
        }
        free_.resize(static_cast<std::size_t>(pages));
        std::iota(free_.begin(), free_.end(), 0);
        std::shuffle(free_.begin(), free_.end(), std::mt19937(7));
    }
    std::vector<std::int32_t> take_pages(int tokens) {
        std::vector<std::int32_t> out;
        for (int t = 0; t < tokens; t += s_.page_tokens) {
            out.push_back(free_.back());
            free_.pop_back();
        }
        out.resize(std::bit_ceil(out.size()), -1);  // entries that are not followed
        return out;
    }
    double rounded(float value) const { return half_ ? f16_to_f32(f32_to_f16(value)) : value; }

    PagedKv kv;

  private:
    Shapes s_;
    bool half_;
    std::vector<float> floats_;
    std::vector<std::uint16_t> halves_;
    std::vector<std::int32_t> free_;
};

using reference::sees;

// One sequence from its first token on, with all its q, k and v.
struct Sequence {
    Sequence(const Shapes& s, int length, unsigned seed, float deviation = 1)
        : tokens(length),
          q(Floats::normal({length, s.heads, s.head_dim}, seed, deviation)),
          k(Floats::normal({length, s.kv_heads, s.head_dim}, seed + 1, deviation)),
          v(Floats::normal({length, s.kv_heads, s.head_dim}, seed + 2)) {}
    int tokens;
    Floats q, k, v;
};

Tensor rows(Floats& all, int heads, int dim, int first, int count) {
    return {all.values.data() + std::int64_t{first} * heads * dim, DType::f32, {count, heads, dim}};
}

// Writes and attends in the given chunks.
std::vector<float> run_chunks(const Shapes& s, DType dtype, Sequence& seq,
                              const AttentionMask& mask, float scale,
                              const std::vector<int>& chunks, int threads = 1) {
    Cache cache(s, dtype, seq.tokens / s.page_tokens + 3);
    const std::vector<std::int32_t> pages = cache.take_pages(seq.tokens);
    Bench bench(threads, attention_scratch_bytes(s.head_dim, threads));
    Floats out({seq.tokens, s.heads, s.head_dim});
    int position = 0;
    for (int count : chunks) {
        const BatchSeq batch{0, count, position, pages};
        kv_write(bench, cache.kv, rows(seq.k, s.kv_heads, s.head_dim, position, count),
                 rows(seq.v, s.kv_heads, s.head_dim, position, count), {&batch, 1});
        attention(bench, rows(out, s.heads, s.head_dim, position, count),
                  rows(seq.q, s.heads, s.head_dim, position, count), cache.kv, {&batch, 1}, mask,
                  scale);
        position += count;
    }
    EXPECT_EQ(position, seq.tokens);
    return out.values;
}

// In f64, on keys and values as the cache rounds them. The bound follows the computation: a score
// of head_dim products errs by at most (head_dim + 2) roundoffs of sum |q k| scale, which is the
// relative error of its weight; weights, their sum and the weighted sum of n values add n + 8 more.
void expect_near_reference(const Shapes& s, DType dtype, const Sequence& seq,
                           const AttentionMask& mask, float scale,
                           const std::vector<std::vector<float>>& results) {
    const Cache cache(s, dtype, 1);
    const int group = s.heads / s.kv_heads;
    for (int t = 0; t < seq.tokens; ++t) {
        for (int h = 0; h < s.heads; ++h) {
            const int kv_head = h / group;
            const std::int64_t q_at = (std::int64_t{t} * s.heads + h) * s.head_dim;
            std::vector<double> score;
            std::vector<int> keys;
            double score_error = 0;
            for (int j = 0; j < seq.tokens; ++j) {
                if (j >= seq.tokens || !sees(mask, t, j)) continue;
                const std::int64_t k_at = (std::int64_t{j} * s.kv_heads + kv_head) * s.head_dim;
                double dot = 0, magnitude = 0;
                for (int d = 0; d < s.head_dim; ++d) {
                    const double product = double{seq.q[q_at + d]} * cache.rounded(seq.k[k_at + d]);
                    dot += product;
                    magnitude += std::abs(product);
                }
                score.push_back(dot * scale);
                keys.push_back(j);
                score_error =
                    std::max(score_error, (s.head_dim + 2) * kRoundoff * magnitude * scale);
            }
            const double top = *std::max_element(score.begin(), score.end());
            double sum = 0;
            for (double& x : score) sum += x = std::exp(x - top);
            const double relative =
                2 * score_error + (static_cast<double>(keys.size()) + 16) * kRoundoff;
            for (int d = 0; d < s.head_dim; ++d) {
                double want = 0, magnitude = 0;
                for (std::size_t i = 0; i < keys.size(); ++i) {
                    const std::int64_t v_at =
                        (std::int64_t{keys[i]} * s.kv_heads + kv_head) * s.head_dim + d;
                    const double part = score[i] / sum * cache.rounded(seq.v[v_at]);
                    want += part;
                    magnitude += std::abs(part);
                }
                for (std::size_t i = 0; i < results.size(); ++i) {
                    ASSERT_NEAR(results[i][static_cast<std::size_t>(q_at + d)], want,
                                2 * relative * magnitude)
                        << "path " << i << " token " << t << " head " << h << " column " << d;
                }
            }
        }
    }
}

constexpr AttentionMask kCausal{};
constexpr AttentionMask kWindow{AttentionMask::Kind::causal, 1, 37};
constexpr AttentionMask kBlocks{AttentionMask::Kind::block_causal, 16, 0};
constexpr AttentionMask kFull{AttentionMask::Kind::full, 1, 0};
constexpr AttentionMask kFullWindow{AttentionMask::Kind::full, 1, 5};
constexpr AttentionMask kBlocksWindow{AttentionMask::Kind::block_causal, 7, 20};

constexpr AttentionMask kSinks{AttentionMask::Kind::causal, 1, 30, 4};
constexpr AttentionMask kManySinks{AttentionMask::Kind::block_causal, 7, 20, 67};

constexpr Shapes kShapes[] = {
    {4, 4, 64, 16},    // as many kv heads as heads
    {8, 2, 16, 32},    // groups of 4
    {6, 1, 7, 5},      // one kv head; no sizes divide each other
    {3, 1, 33, 100},   // a page of more than one tile
    {9, 3, 128, 128},  // groups of 3, large heads
    {2, 2, 1, 1},      // the smallest
};

TEST(Attention, MatchesF64) {
    for (const Shapes& s : kShapes) {
        for (DType dtype : {DType::f32, DType::f16}) {
            for (int length : {1, 2, 131}) {
                Sequence seq(s, length, 11);
                const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
                for (const AttentionMask& mask : {kCausal, kWindow, kBlocks, kFull, kFullWindow,
                                                  kBlocksWindow, kSinks, kManySinks}) {
                    SCOPED_TRACE(::testing::Message()
                                 << "heads " << s.heads << " dim " << s.head_dim << " length "
                                 << length << " " << dtype_name(dtype) << " mask "
                                 << static_cast<int>(mask.kind) << " window " << mask.window);
                    std::vector<std::vector<float>> results;
                    for_each_isa([&] {
                        results.push_back(run_chunks(s, dtype, seq, mask, scale, {length}));
                    });
                    expect_near_reference(s, dtype, seq, mask, scale, results);
                    if (::testing::Test::HasFatalFailure()) return;
                }
            }
        }
    }
}

TEST(Attention, LargeScoresDoNotOverflow) {
    const Shapes s{2, 1, 32, 16};
    for_each_isa([&] {
        Sequence seq(s, 70, 5, 30);  // scores in the thousands
        const std::vector<float> got = run_chunks(s, DType::f32, seq, kCausal, 1, {70});
        for (float x : got) ASSERT_TRUE(std::isfinite(x));
    });
}

TEST(Attention, BitsDoNotDependOnHowTheSequenceIsCut) {
    for_each_isa([] {
        for (const Shapes& s : kShapes) {
            for (DType dtype : {DType::f32, DType::f16}) {
                for (const AttentionMask& mask : {kCausal, kWindow, kSinks}) {
                    const int length = 135;
                    Sequence seq(s, length, 3);
                    const std::vector<float> whole =
                        run_chunks(s, dtype, seq, mask, 0.25f, {length});
                    const std::vector<int> ones(static_cast<std::size_t>(length), 1);
                    EXPECT_TRUE(same_bits(whole, run_chunks(s, dtype, seq, mask, 0.25f, ones)))
                        << "token by token, dim " << s.head_dim;
                    EXPECT_TRUE(same_bits(
                        whole, run_chunks(s, dtype, seq, mask, 0.25f, {1, 2, 3, 61, 5, 63})))
                        << "in chunks, dim " << s.head_dim;
                }
            }
        }
    });
}

TEST(Attention, BlocksFromEveryOrigin) {
    const Shapes s{4, 2, 24, 32};
    for (const AttentionMask& mask : reference::origin_masks()) {
        SCOPED_TRACE(::testing::Message() << "block " << mask.block << " origin " << mask.origin);
        Sequence seq(s, 75, 11);
        std::vector<std::vector<float>> results;
        for_each_isa([&] { results.push_back(run_chunks(s, DType::f32, seq, mask, 0.2f, {75})); });
        expect_near_reference(s, DType::f32, seq, mask, 0.2f, results);
        if (::testing::Test::HasFatalFailure()) return;
        // Cut at the ends of blocks, as blocks after a prompt are computed.
        std::vector<int> blocks{mask.origin % mask.block};
        if (blocks[0] == 0) blocks.clear();
        for (int at = mask.origin % mask.block; at < 75; at += mask.block) {
            blocks.push_back(std::min(mask.block, 75 - at));
        }
        EXPECT_TRUE(same_bits(results.back(), run_chunks(s, DType::f32, seq, mask, 0.2f, blocks)));
    }
}

// A table with as few entries as a window and its chunks allow, whose pages are overwritten again
// and again: the same bits as with a table that holds everything.
TEST(Attention, AWindowGoesRoundInAShortTable) {
    for_each_isa([] {
        for (const Shapes& s : kShapes) {
            for (const AttentionMask& mask : {kWindow, kFullWindow, kBlocksWindow}) {
                for (const int chunk : {1, 7, 40}) {
                    const int length = 300;
                    Sequence seq(s, length, 3);
                    std::vector<int> chunks(static_cast<std::size_t>(length / chunk), chunk);
                    if (length % chunk > 0) chunks.push_back(length % chunk);
                    const auto entries = std::bit_ceil(static_cast<unsigned>(
                        pages_spanned(mask.window - 1 + chunk, s.page_tokens)));
                    Cache cache(s, DType::f32, static_cast<int>(entries));
                    const std::vector<std::int32_t> pages =
                        cache.take_pages(static_cast<int>(entries) * s.page_tokens);
                    Bench bench(1, attention_scratch_bytes(s.head_dim, 1));
                    Floats out({length, s.heads, s.head_dim});
                    int position = 0;
                    for (const int count : chunks) {
                        const int seen = std::max(0, position - mask.window + 1);
                        const BatchSeq batch{0, count, position, pages,
                                             seen / s.page_tokens * s.page_tokens};
                        kv_write(bench, cache.kv,
                                 rows(seq.k, s.kv_heads, s.head_dim, position, count),
                                 rows(seq.v, s.kv_heads, s.head_dim, position, count), {&batch, 1});
                        attention(bench, rows(out, s.heads, s.head_dim, position, count),
                                  rows(seq.q, s.heads, s.head_dim, position, count), cache.kv,
                                  {&batch, 1}, mask, 0.25f);
                        position += count;
                    }
                    EXPECT_TRUE(
                        same_bits(out.values, run_chunks(s, DType::f32, seq, mask, 0.25f, chunks)))
                        << "dim " << s.head_dim << " window " << mask.window << " chunk " << chunk;
                }
            }
        }
    });
}

TEST(Attention, APageThatIsGoneIsNotSeen) {
    const Shapes s{2, 1, 8, 16};
    Cache cache(s, DType::f32, 4);
    const std::vector<std::int32_t> pages = cache.take_pages(64);
    Bench bench(1, attention_scratch_bytes(s.head_dim, 1));
    Floats q({1, s.heads, s.head_dim}), out({1, s.heads, s.head_dim});
    const auto attend = [&](const BatchSeq& seq, const AttentionMask& mask) {
        attention(bench, out, q, cache.kv, {&seq, 1}, mask, 1);
    };
    Floats k({64, s.kv_heads, s.head_dim}), v({64, s.kv_heads, s.head_dim});
    const BatchSeq all{0, 64, 32, pages, 32};
    kv_write(bench, cache.kv, k, v, {&all, 1});
    const BatchSeq seq{0, 1, 95, pages, 48};
    EXPECT_NO_THROW(attend(seq, kWindow));
    EXPECT_THROW(attend(seq, kCausal), ContractError);
    EXPECT_THROW(attend(seq, kSinks), ContractError);
    EXPECT_THROW(attend({0, 1, 95, pages, 64}, kWindow), ContractError);
    EXPECT_THROW(attend({0, 1, 95, pages, 40}, kWindow), ContractError);  // not the begin of a page
    EXPECT_THROW(attend({0, 1, 95, pages, 16}, kWindow),
                 ContractError);  // five pages, four entries
    EXPECT_THROW(attend({0, 1, 40, std::span(pages).first(3)}, kWindow), ContractError);
}

// A block that is denoised sees all of itself; earlier blocks never see it.
TEST(Attention, BlockCausalByBlocksIsTheSameAsAtOnce) {
    const Shapes s{4, 2, 24, 16};
    for_each_isa([&] {
        Sequence seq(s, 64, 3);
        EXPECT_TRUE(same_bits(run_chunks(s, DType::f32, seq, kBlocks, 0.2f, {64}),
                              run_chunks(s, DType::f32, seq, kBlocks, 0.2f, {16, 32, 16})));
    });
}

TEST(Attention, BitsDoNotDependOnThreads) {
    for_each_isa([] {
        for (const Shapes& s : kShapes) {
            Sequence seq(s, 150, 9);
            const std::vector<float> one = run_chunks(s, DType::f32, seq, kCausal, 0.3f, {140, 10});
            for (int threads : {2, 3}) {
                EXPECT_TRUE(same_bits(
                    one, run_chunks(s, DType::f32, seq, kCausal, 0.3f, {140, 10}, threads)));
            }
        }
    });
}

// Sequences of these lengths, of which the last `counts` tokens are in the batch.
void expect_as_alone(const Shapes& s, DType dtype, const AttentionMask& mask,
                     std::span<const int> lengths, std::span<const int> counts) {
    Cache cache(s, dtype, 60 * std::ssize(lengths));
    Bench bench(2, attention_scratch_bytes(s.head_dim, 2));
    std::vector<Sequence> sequences;
    std::vector<std::vector<std::int32_t>> pages;
    std::vector<BatchSeq> before, batch;
    int first = 0, first_before = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        sequences.emplace_back(s, lengths[i], static_cast<unsigned>(50 + i));
        pages.push_back(cache.take_pages(lengths[i]));
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        before.push_back({first_before, lengths[i] - counts[i], 0, pages[i]});
        batch.push_back({first, counts[i], lengths[i] - counts[i], pages[i]});
        first_before += lengths[i] - counts[i];
        first += counts[i];
    }
    const auto gather = [&](Floats Sequence::*what, int heads, const auto& seqs, int total) {
        Floats out({total, heads, s.head_dim});
        for (std::size_t i = 0; i < seqs.size(); ++i) {
            const Floats& from = sequences[i].*what;
            const std::int64_t row = std::int64_t{heads} * s.head_dim;
            std::copy_n(from.values.begin() + seqs[i].position * row, seqs[i].count * row,
                        out.values.begin() + seqs[i].first * row);
        }
        return out;
    };
    Floats k0 = gather(&Sequence::k, s.kv_heads, before, first_before);
    Floats v0 = gather(&Sequence::v, s.kv_heads, before, first_before);
    kv_write(bench, cache.kv, k0, v0, before);
    Floats k = gather(&Sequence::k, s.kv_heads, batch, first);
    Floats v = gather(&Sequence::v, s.kv_heads, batch, first);
    Floats q = gather(&Sequence::q, s.heads, batch, first);
    Floats out({first, s.heads, s.head_dim});
    kv_write(bench, cache.kv, k, v, batch);
    attention(bench, out, q, cache.kv, batch, mask, 0.3f);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::vector<float> alone =
            run_chunks(s, dtype, sequences[i], mask, 0.3f, {lengths[i]});
        const std::int64_t row = std::int64_t{s.heads} * s.head_dim;
        EXPECT_TRUE(std::equal(alone.begin() + batch[i].position * row, alone.end(),
                               out.values.begin() + batch[i].first * row))
            << "sequence " << i << " of heads " << s.heads << " x " << s.head_dim;
    }
}

// Decode, prefill and a sequence with nothing to do in one batch.
TEST(Attention, RaggedBatchGivesTheBitsOfEachAlone) {
    for_each_isa([] {
        for (const Shapes& s : kShapes) {
            expect_as_alone(s, DType::f32, kCausal, std::array{100, 17, 64, 1, 40},
                            std::array{1, 17, 5, 1, 0});
        }
    });
}

// Many decoding sequences: all heads of one are a task, also beside parts of prompts. Not if a long
// one is among them, or with more heads than a task has rows.
TEST(Attention, ManyThatDecodeHaveTheBitsOfEachAlone) {
    constexpr Shapes kManyHeads[] = {{64, 8, 8, 16}, {66, 33, 8, 16}};
    constexpr std::array kOnes{1, 1, 1, 1, 1, 1};
    for_each_isa([&] {
        for (const DType dtype : {DType::f32, DType::f16}) {
            for (const AttentionMask& mask : {kCausal, kWindow, kSinks}) {
                const auto check = [&](const Shapes& s) {
                    expect_as_alone(s, dtype, mask, std::array{100, 70, 64, 33, 90, 1}, kOnes);
                };
                for (const Shapes& s : kShapes) check(s);
                for (const Shapes& s : kManyHeads) check(s);
            }
            expect_as_alone(kShapes[1], dtype, kCausal, std::array{300, 1, 2, 33, 9, 1}, kOnes);
            expect_as_alone(kShapes[1], dtype, kCausal, std::array{100, 70, 64, 33, 90, 40},
                            std::array{1, 1, 20, 1, 1, 40});
        }
    });
}

// Keys that a query may not see cannot reach it, not even as 0 * NaN.
TEST(Attention, MaskedNanStaysOut) {
    const Shapes s{4, 2, 20, 16};
    for_each_isa([&] {
        Sequence seq(s, 50, 21);
        const std::vector<float> clean = run_chunks(s, DType::f32, seq, kCausal, 0.3f, {50});
        const std::int64_t row = std::int64_t{s.kv_heads} * s.head_dim;
        for (std::int64_t i = 30 * row; i < 31 * row; ++i) seq.k[i] = seq.v[i] = kPoison;
        const std::vector<float> dirty = run_chunks(s, DType::f32, seq, kCausal, 0.3f, {50});
        const std::int64_t until = 30 * std::int64_t{s.heads} * s.head_dim;
        EXPECT_TRUE(std::equal(clean.begin(), clean.begin() + until, dirty.begin()));
        EXPECT_TRUE(std::isnan(dirty[static_cast<std::size_t>(until)]));
    });
}

TEST(Attention, RowsWithoutWeightGiveZeros) {
    const Shapes s{2, 1, 8, 16};
    for_each_isa([&] {
        Sequence seq(s, 3, 2);
        std::fill(seq.q.values.begin(), seq.q.values.end(), 1.0f);
        std::fill(seq.k.values.begin(), seq.k.values.end(),
                  -std::numeric_limits<float>::infinity());
        for (float x : run_chunks(s, DType::f32, seq, kCausal, 1, {3})) EXPECT_EQ(x, 0.0f);
    });
}

TEST(KvWrite, RoundsToNearestEvenInF16) {
    const Shapes s{1, 1, 5, 4};
    for_each_isa([&] {
        Cache cache(s, DType::f16, 2);
        Bench bench;
        Floats k({1, 1, 5}), v({1, 1, 5});
        k.values = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 70000.0f, -1e-8f, 0x1p-24f};
        v.values = {-2.5f, 0.1f, 65504.0f, 6e-8f, -0.0f};
        const std::vector<std::int32_t> pages = cache.take_pages(2);
        const BatchSeq seq{0, 1, 1, pages};
        kv_write(bench, cache.kv, k, v, {&seq, 1});
        const auto* keys = static_cast<const std::uint16_t*>(cache.kv.keys.data);
        const auto* values = static_cast<const std::uint16_t*>(cache.kv.values.data);
        const std::int64_t at = (std::int64_t{pages[0]} * 4 + 1) * 5;
        for (std::int64_t d = 0; d < 5; ++d) {
            EXPECT_EQ(keys[at + d], f32_to_f16(k[d]));
            EXPECT_EQ(values[at + d], f32_to_f16(v[d]));
        }
        EXPECT_EQ(keys[at - 1], 0x7e00);  // previous position: untouched
        EXPECT_EQ(keys[at + 5], 0x7e00);
    });
}

TEST(Attention, LedgerCountsWhatTheMaskLeaves) {
    const Shapes s{4, 2, 8, 16};
    Sequence seq(s, 10, 1);
    Cache cache(s, DType::f16, 3);
    Bench bench(1, attention_scratch_bytes(8, 1));
    const std::vector<std::int32_t> pages = cache.take_pages(10);
    const BatchSeq batch{0, 10, 0, pages};
    Floats out({10, 4, 8});
    kv_write(bench, cache.kv, seq.k, seq.v, {&batch, 1});
    attention(bench, out, seq.q, cache.kv, {&batch, 1}, kCausal, 1);
    expect_record(bench.ledger.op(OpKind::kv_write), 1, 2 * 10 * 2 * 8 * 4, 2 * 10 * 2 * 8 * 2, 0);
    const std::uint64_t rows_bytes = 10 * 4 * 8 * 4, cache_bytes = 2 * 10 * 2 * 8 * 2;
    expect_record(bench.ledger.op(OpKind::attention), 1, rows_bytes + cache_bytes, rows_bytes,
                  55 * 4 * 4 * 8);
    const BatchSeq last{0, 1, 9, pages};
    attention(bench, rows(out, 4, 8, 0, 1), rows(seq.q, 4, 8, 9, 1), cache.kv, {&last, 1},
              AttentionMask{AttentionMask::Kind::causal, 1, 3}, 1);
    expect_record(bench.ledger.op(OpKind::attention), 2,
                  rows_bytes + cache_bytes + 128 + 2 * 3 * 2 * 8 * 2, rows_bytes + 128,
                  (55 + 3) * 4 * 4 * 8);
    attention(bench, rows(out, 4, 8, 0, 1), rows(seq.q, 4, 8, 9, 1), cache.kv, {&last, 1},
              AttentionMask{AttentionMask::Kind::causal, 1, 3, 2}, 1);
    expect_record(bench.ledger.op(OpKind::attention), 3,
                  rows_bytes + cache_bytes + 2 * 128 + 2 * (3 + 5) * 2 * 8 * 2,
                  rows_bytes + 2 * 128, (55 + 3 + 5) * 4 * 4 * 8);
}

TEST(Attention, BrokenContractsAreNamed) {
    const Shapes s{4, 2, 8, 16};
    Sequence seq(s, 20, 1);
    Cache cache(s, DType::f32, 3);
    Bench bench(1, attention_scratch_bytes(8, 1));
    Bench bare(1);
    Floats out({20, 4, 8});
    const std::vector<std::int32_t> good{0, 1}, few{0}, wild{0, 3};
    const auto run = [&](Context ctx, const std::vector<std::int32_t>& pages, Tensor q) {
        const BatchSeq batch{0, 20, 0, pages};
        attention(ctx, out, q, cache.kv, {&batch, 1}, kCausal, 1);
    };
    EXPECT_NO_THROW(run(bench, good, seq.q));
    EXPECT_THROW(run(bench, few, seq.q), ContractError);
    EXPECT_THROW(run(bench, wild, seq.q), ContractError);
    EXPECT_THROW(run(bare, good, seq.q), ContractError);
    EXPECT_THROW(run(bench, good, seq.k), ContractError);
    Floats q3({20, 3, 8}), out3({20, 3, 8});
    const BatchSeq batch{0, 20, 0, good};
    EXPECT_THROW(attention(bench, out3, q3, cache.kv, {&batch, 1}, kCausal, 1), ContractError);
}

}  // namespace
}  // namespace mr::ops::attention_test
