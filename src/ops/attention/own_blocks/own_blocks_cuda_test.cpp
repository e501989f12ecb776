#include "ops/attention/own_blocks/own_blocks_cuda.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "core/error.h"
#include "ops/attention/flash/flash_cuda.h"
#include "ops/attention/merge/merge_cuda.h"

namespace mr::cuda {
namespace {

using ops::HeadRows;

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Case {
    std::int64_t tokens, heads, kv, dim;
    int block;

    std::int64_t queries() const { return heads * dim; }
    std::int64_t keys() const { return kv * dim; }
    // q, k and v of a token, and eight elements that belong to no head.
    std::int64_t row() const { return queries() + 2 * keys() + 8; }
    float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
};

// Block sizes of powers of two and others, up to the maximum; heads of every number of lanes and
// between; one and many query heads per kv head; units that fill a thread block or do not.
const Case kCases[] = {{12, 2, 1, 8, 1},      {6, 4, 1, 8, 2},       {36, 2, 2, 128, 3},
                       {8, 4, 2, 16, 4},      {20, 8, 4, 32, 4},     {4, 8, 4, 32, 4},
                       {10, 6, 2, 40, 5},     {24, 3, 3, 24, 6},     {32, 8, 2, 32, 16},
                       {64, 32, 4, 128, 16},  {66, 2, 1, 64, 33},    {64, 4, 2, 64, 32},
                       {128, 2, 1, 128, 64},  {192, 5, 5, 80, 48},   {4096, 8, 4, 32, 4},
                       {2048, 16, 8, 128, 8}, {1024, 32, 1, 64, 16}, {17, 3, 3, 72, 17}};

struct Inputs {
    std::vector<float> qkv, dqkv;  // [tokens, row()]
    std::vector<float> out, dout;  // [tokens, queries()]
    std::vector<float> lse;        // [heads, tokens]
};

class GpuOwnBlocks : public GpuTest {
  protected:
    struct Device {
        Tensor qkv, dqkv, out, dout, lse;
    };
    struct Views {
        HeadRows q, k, v;
    };
    static HeadRows heads_at(const Tensor& x, std::int64_t first, std::int64_t heads,
                             std::int64_t dim) {
        return {
            Tensor(static_cast<std::byte*>(x.data) + 2 * first, x.dtype, {x.dim(0), heads, dim}),
            x.dim(1)};
    }
    static Views views(const Tensor& x, const Case& c) {
        return {heads_at(x, 0, c.heads, c.dim), heads_at(x, c.queries(), c.kv, c.dim),
                heads_at(x, c.queries() + c.keys(), c.kv, c.dim)};
    }

    Inputs inputs(const Case& c) {
        const auto tokens = static_cast<std::size_t>(c.tokens);
        Inputs x;
        x.qkv = normal(tokens * static_cast<std::size_t>(c.row()));
        x.dqkv = normal(tokens * static_cast<std::size_t>(c.row()));
        x.out = normal(tokens * static_cast<std::size_t>(c.queries()));
        x.dout = normal(tokens * static_cast<std::size_t>(c.queries()));
        x.lse = normal(static_cast<std::size_t>(c.heads * c.tokens), 2);
        // Rows that outweigh the block, or are outweighed by it; and others that saw nothing
        // before, whose out is not read.
        x.lse[static_cast<std::size_t>(c.tokens - 1)] = 40;
        x.lse[static_cast<std::size_t>((c.heads - 1) * c.tokens + c.tokens / 2)] = -40;
        for (std::int64_t h = 0; h < c.heads; ++h) {
            for (std::int64_t t = h % 2; t < c.tokens; t += 5) {
                x.lse[static_cast<std::size_t>(h * c.tokens + t)] = kNone;
                for (std::int64_t d = 0; d < c.dim; ++d) {
                    x.out[static_cast<std::size_t>(t * c.queries() + h * c.dim + d)] = NAN;
                }
            }
        }
        return x;
    }
    Device sent(Inputs& x, const Case& c) {
        return {upload(DType::bf16, {c.tokens, c.row()}, x.qkv),
                upload(DType::bf16, {c.tokens, c.row()}, x.dqkv),
                upload(DType::bf16, {c.tokens, c.queries()}, x.out),
                upload(DType::bf16, {c.tokens, c.queries()}, x.dout),
                upload(DType::f32, {c.heads, c.tokens}, x.lse)};
    }
    void run(const Device& on, const Case& c) {
        const Views x = views(on.qkv, c), d = views(on.dqkv, c);
        const HeadRows out = heads_at(on.out, 0, c.heads, c.dim);
        own_blocks_forward(ctx_, out, on.lse, x.q, x.k, x.v, c.block, c.scale());
        own_blocks_backward(ctx_, {d.q, d.k, d.v}, heads_at(on.dout, 0, c.heads, c.dim), x.q, x.k,
                            x.v, out, on.lse, c.block, c.scale());
    }
};

// A sum, and the sum of its terms' magnitudes, which determines its rounding error.
struct Sum {
    double value = 0, size = 0;
    void add(double x, double of) { value += x, size += of; }
    // For a result in bf16 with f32 sums.
    double bound() const { return 0x1p-8 * std::abs(value) + 0x1p-17 * size + 1e-30; }
};

// In f64 from the definition: attention over the block's keys merged with the previous result; then
// the gradients, from the kernel's own results (bf16).
void expect_truth(const Case& c, const Inputs& x, const std::vector<float>& out,
                  const std::vector<float>& lse, const std::vector<float>& d) {
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const std::int64_t row = c.row(), queries = c.queries(), group = c.heads / c.kv;
    std::vector<Sum> dk(at(c.tokens * c.keys())), dv(dk.size());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
        const std::int64_t first = t / c.block * c.block;
        for (std::int64_t h = 0; h < c.heads; ++h) {
            const float* q = x.qkv.data() + t * row + h * c.dim;
            const float* dout = x.dout.data() + t * queries + h * c.dim;
            const auto key = [&](std::int64_t j) {
                return x.qkv.data() + (first + j) * row + queries + h / group * c.dim;
            };
            const auto value = [&](std::int64_t j) { return key(j) + c.keys(); };
            const auto dot = [&](const float* a, const float* b, bool sizes = false) {
                double sum = 0;
                for (std::int64_t i = 0; i < c.dim; ++i) {
                    const double term = double{a[i]} * double{b[i]};
                    sum += sizes ? std::abs(term) : term;
                }
                return sum;
            };
            const double before = x.lse[at(h * c.tokens + t)];
            double top = before;
            std::vector<double> s;
            for (int j = 0; j < c.block; ++j) {
                s.push_back(double{c.scale()} * dot(q, key(j)));
                top = std::max(top, s.back());
            }
            double sum = std::isinf(before) ? 0 : std::exp(before - top);
            for (const double score : s) sum += std::exp(score - top);
            const double want = top + std::log(sum);
            ASSERT_NEAR(lse[at(h * c.tokens + t)], want, 0x1p-20 * (4 + std::abs(want)))
                << "row " << t << " head " << h;
            for (std::int64_t i = 0; i < c.dim; ++i) {
                Sum o;
                if (!std::isinf(before)) {
                    const double old =
                        std::exp(before - want) * double{x.out[at(t * queries + h * c.dim + i)]};
                    o.add(old, std::abs(old));
                }
                for (int j = 0; j < c.block; ++j) {
                    const double part = std::exp(s[at(j)] - want) * double{value(j)[i]};
                    o.add(part, std::abs(part));
                }
                ASSERT_NEAR(out[at(t * queries + h * c.dim + i)], o.value, o.bound())
                    << "row " << t << " head " << h << " element " << i;
            }
            // The gradients, from the forward's results.
            const float* o = out.data() + t * queries + h * c.dim;
            const double l = lse[at(h * c.tokens + t)], delta = dot(dout, o);
            const double delta_size = dot(dout, o, true);
            std::vector<Sum> dq(at(c.dim));
            for (int j = 0; j < c.block; ++j) {
                const double p = std::exp(s[at(j)] - l);
                const double ds = double{c.scale()} * p * (dot(dout, value(j)) - delta);
                const double size =
                    double{c.scale()} * p * (dot(dout, value(j), true) + delta_size);
                for (std::int64_t i = 0; i < c.dim; ++i) {
                    const std::size_t to = at((first + j) * c.keys() + h / group * c.dim + i);
                    const double k = key(j)[i], query = q[i], g = dout[i];
                    dq[at(i)].add(ds * k, size * std::abs(k));
                    dk[to].add(ds * query, size * std::abs(query));
                    dv[to].add(p * g, p * std::abs(g));
                }
            }
            for (std::int64_t i = 0; i < c.dim; ++i) {
                const double old = x.dqkv[at(t * row + h * c.dim + i)];
                dq[at(i)].add(old, std::abs(old));
                ASSERT_NEAR(d[at(t * row + h * c.dim + i)], dq[at(i)].value, dq[at(i)].bound())
                    << "dq of row " << t << " head " << h << " element " << i;
            }
        }
    }
    for (std::int64_t t = 0; t < c.tokens; ++t) {
        for (std::int64_t i = 0; i < c.keys(); ++i) {
            const Sum &k = dk[at(t * c.keys() + i)], &v = dv[at(t * c.keys() + i)];
            const std::int64_t to = t * row + queries + i;
            ASSERT_NEAR(d[at(to)], k.value, k.bound()) << "dk of key " << t << " at " << i;
            ASSERT_NEAR(d[at(to + c.keys())], v.value, v.bound()) << "dv of " << t << " at " << i;
        }
        for (std::int64_t i = row - 8; i < row; ++i) {  // belongs to no head
            ASSERT_EQ(d[at(t * row + i)], x.dqkv[at(t * row + i)]);
        }
    }
}

std::string name_of(const Case& c) {
    return std::to_string(c.tokens) + " tokens in blocks of " + std::to_string(c.block) + ", " +
           std::to_string(c.heads) + " heads to " + std::to_string(c.kv) + " of " +
           std::to_string(c.dim);
}

TEST_F(GpuOwnBlocks, IsAttentionOverBothParts) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(name_of(c));
        memory_.reset();
        ASSERT_TRUE(takes_own_blocks(c.heads, c.kv, c.dim, c.block));
        Inputs x = inputs(c);
        const Device on = sent(x, c);
        run(on, c);
        expect_truth(c, x, download(on.out), download(on.lse), download(on.dqkv));
        if (HasFatalFailure()) return;
    }
}

// The result of three calls on the CPU, and on the GPU for longer blocks.
TEST_F(GpuOwnBlocks, IsFlashAttentionMerged) {
    for (const Case& c :
         {Case{64, 8, 4, 32, 4}, Case{128, 4, 2, 64, 16}, Case{128, 2, 2, 128, 64}}) {
        SCOPED_TRACE(name_of(c));
        memory_.reset();
        Inputs x = inputs(c);
        Inputs same = x;
        const Device ours = sent(x, c), theirs = sent(same, c);
        run(ours, c);
        const Views v = views(theirs.qkv, c), d = views(theirs.dqkv, c);
        const HeadRows out = heads_at(theirs.out, 0, c.heads, c.dim);
        const Tensor own = poisoned(DType::bf16, {c.tokens, c.queries()});
        const Tensor own_lse = poisoned(DType::f32, {c.heads, c.tokens});
        const HeadRows own_heads = heads_at(own, 0, c.heads, c.dim);
        FlashBatch batch;
        batch.sequences = static_cast<int>(c.tokens / c.block);
        batch.max_queries = batch.max_keys = c.block;
        const ops::AttentionMask full{ops::AttentionMask::Kind::full};
        const std::size_t scratch = flash_backward_scratch_bytes(v.q, batch);
        ctx_.scratch = {memory_.array<std::byte>(scratch), scratch};
        flash_forward(ctx_, own_heads, own_lse, v.q, v.k, v.v, batch, full, c.scale());
        merge_attention(ctx_, out, theirs.lse, own_heads, own_lse);
        const Tensor part = poisoned(DType::bf16, {c.tokens, c.queries()});
        const HeadRows dq = heads_at(part, 0, c.heads, c.dim);
        flash_backward(ctx_, {dq, d.k, d.v}, heads_at(theirs.dout, 0, c.heads, c.dim), v.q, v.k,
                       v.v, out, theirs.lse, batch, full, c.scale());
        add_heads(ctx_, d.q, dq);
        const auto near = [&](const Tensor& a, const Tensor& b, const char* what) {
            const std::vector<float> got = download(a), want = download(b);
            double error = 0, size = 0;
            for (std::size_t i = 0; i < got.size(); ++i) {
                error += std::pow(double{got[i]} - double{want[i]}, 2);
                size += std::pow(double{want[i]}, 2);
            }
            // Each side is rounded two or three times.
            EXPECT_LT(std::sqrt(error), 3 * 0x1p-8 * std::sqrt(size)) << what;
        };
        near(ours.out, theirs.out, "out");
        near(ours.lse, theirs.lse, "lse");
        near(ours.dqkv, theirs.dqkv, "gradients");
    }
}

// Repeated runs, and a block alone or among others, give the same bits.
TEST_F(GpuOwnBlocks, BitsDependOnTheBlockAlone) {
    for (const Case& c : {Case{40, 8, 4, 32, 4}, Case{48, 6, 2, 64, 16}, Case{192, 2, 1, 40, 64}}) {
        SCOPED_TRACE(name_of(c));
        memory_.reset();
        Inputs x = inputs(c);
        std::vector<float> first[3];
        for (const int time : {0, 1}) {
            Inputs copy = x;
            const Device on = sent(copy, c);
            run(on, c);
            const std::vector<float> got[3] = {download(on.out), download(on.lse),
                                               download(on.dqkv)};
            for (int i = 0; i < 3; ++i) {
                if (time == 0) first[i] = got[i];
                EXPECT_EQ(got[i], first[i]);
            }
        }
        const std::int64_t begin = c.tokens - 2 * c.block;  // the last block but one
        Case one = c;
        one.tokens = c.block;
        const auto rows = [&](const std::vector<float>& of, std::int64_t width) {
            return std::vector<float>(of.begin() + begin * width,
                                      of.begin() + (begin + c.block) * width);
        };
        Inputs alone{rows(x.qkv, c.row()),
                     rows(x.dqkv, c.row()),
                     rows(x.out, c.queries()),
                     rows(x.dout, c.queries()),
                     {}};
        for (std::int64_t h = 0; h < c.heads; ++h) {
            const auto from = x.lse.begin() + h * c.tokens + begin;
            alone.lse.insert(alone.lse.end(), from, from + c.block);
        }
        const Device on = sent(alone, one);
        run(on, one);
        EXPECT_EQ(download(on.out), rows(first[0], c.queries()));
        EXPECT_EQ(download(on.dqkv), rows(first[2], c.row()));
    }
}

TEST_F(GpuOwnBlocks, Contract) {
    EXPECT_TRUE(own_blocks_pay(32, 4) && own_blocks_pay(128, 16) && own_blocks_pay(32, 32));
    EXPECT_FALSE(own_blocks_pay(128, 32) || own_blocks_pay(32, 64));
    EXPECT_FALSE(takes_own_blocks(8, 4, 32, 65));
    EXPECT_FALSE(takes_own_blocks(8, 4, 136, 4));
    EXPECT_FALSE(takes_own_blocks(8, 4, 12, 4));
    EXPECT_FALSE(takes_own_blocks(8, 3, 32, 4));
    EXPECT_FALSE(takes_own_blocks(8, 4, 32, 0));
    EXPECT_FALSE(takes_own_blocks(1 << 20, 1, 32, 4));  // more rows than fit into shared memory
    // 16 bytes for each of 128 x 64 rows: older GPUs have less.
    EXPECT_EQ(takes_own_blocks(128, 1, 128, 64), this_gpu().shared_per_block >= 128 * 64 * 16);
    const Case c{8, 4, 2, 16, 4};
    Inputs x = inputs(c);
    const Device on = sent(x, c);
    const Views v = views(on.qkv, c);
    const HeadRows out = heads_at(on.out, 0, c.heads, c.dim);
    const auto forward = [&](const HeadRows& to, Tensor lse, int block) {
        own_blocks_forward(ctx_, to, lse, v.q, v.k, v.v, block, c.scale());
    };
    EXPECT_NO_THROW(forward(out, on.lse, 4));
    EXPECT_THROW(forward(out, on.lse, 3), ContractError);  // not whole blocks
    EXPECT_THROW(forward(out, on.lse, 65), ContractError);
    EXPECT_THROW(forward(v.k, on.lse, 4), ContractError);
    EXPECT_THROW(forward(out, poisoned(DType::f32, {c.tokens, c.heads}), 4), ContractError);
    const Tensor wide = poisoned(DType::f32, {c.tokens, c.queries()});
    EXPECT_THROW(forward(heads_at(wide, 0, c.heads, c.dim), on.lse, 4), ContractError);
}

}  // namespace
}  // namespace mr::cuda
