// The backward of attention on plain tensors against the reference in f64, with bounds for every
// element. out and lse are the reference's own, rounded: the forward is not needed.
#include <cmath>
#include <limits>
#include <string>

#include "ops/attention/flash_cuda.h"
#include "ops/attention/flash_testing.h"

namespace mr::cuda {
namespace {

namespace reference = ops::reference;
using ops::AttentionMask;
using ops::HeadRows;
using Kind = AttentionMask::Kind;
using reference::Problem;

const std::vector<AttentionMask> kMasks{
    {Kind::full},
    {Kind::causal},
    {Kind::block_causal, 16},
    {Kind::causal, 1, 137},           // a window
    {Kind::causal, 1, 100, 4},        // and sinks
    {Kind::causal, 1, 60, 140},       // sinks beyond a tile
    {Kind::block_causal, 50, 70, 2},  // all of it
    {Kind::full, 1, 50, 20},
};

class FlashBackwardTest : public FlashGpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (device()->sm != 90) GTEST_SKIP() << "there is no kernel for this device yet";
    }
    static Problem random(int heads, int kv_heads, int dim, const std::vector<int>& q,
                          const std::vector<int>& k, const AttentionMask& mask, DType dtype) {
        return reference::random_problem(heads, kv_heads, dim, q, k, mask, 41, 1, rounding(dtype));
    }

    // The tensors, `spare` tokens more than there are in sequences, NaN in those; gradients NaN.
    struct Device {
        Tensor q, k, v, out, dout, lse, dq, dk, dv;
        FlashBatch batch;
        ops::FlashGradients gradients() const { return {dq, dk, dv}; }
    };
    Device device_copy(const Problem& p, const reference::Result& forward, DType dtype,
                       int spare = 0) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        const auto put = [&](const std::vector<double>& x, int tokens, int heads) {
            std::vector<float> values(x.begin(), x.end());
            values.resize(Problem::at(tokens + spare) * Problem::at(heads * p.head_dim), nan);
            return upload(dtype, {tokens + spare, heads, p.head_dim}, values);
        };
        Device d;
        d.q = put(p.q, p.tokens_q(), p.heads);
        d.k = put(p.k, p.tokens_k(), p.kv_heads);
        d.v = put(p.v, p.tokens_k(), p.kv_heads);
        d.out = put(forward.out, p.tokens_q(), p.heads);
        d.dout = put(p.dout, p.tokens_q(), p.heads);
        const int tokens = p.tokens_q() + spare;
        std::vector<float> lse(Problem::at(p.heads) * Problem::at(tokens), nan);
        for (int h = 0; h < p.heads; ++h) {
            for (int t = 0; t < p.tokens_q(); ++t) {
                lse[Problem::at(h * tokens + t)] =
                    static_cast<float>(forward.lse[Problem::at(h * p.tokens_q() + t)]);
            }
        }
        d.lse = upload(DType::f32, {p.heads, tokens}, lse);
        d.dq = poisoned(dtype, d.q.shape);
        d.dk = poisoned(dtype, d.k.shape);
        d.dv = poisoned(dtype, d.k.shape);
        d.batch = device_batch(p);
        return d;
    }
    void backward(const ops::FlashGradients& to, const HeadRows& dout, const HeadRows& q,
                  const HeadRows& k, const HeadRows& v, const HeadRows& out, const Tensor& lse,
                  const FlashBatch& batch, const AttentionMask& mask, double scale) {
        const std::size_t bytes = flash_backward_scratch_bytes(q, k, batch);
        Context ctx = ctx_;
        ctx.scratch = {static_cast<std::byte*>(memory_.alloc(bytes)), bytes};
        stream_->fill(ctx.scratch.data(), 0xff, bytes);  // nothing is expected of it
        flash_backward(ctx, to, dout, q, k, v, out, lse, batch, mask, static_cast<float>(scale));
    }
    void backward(const Device& d, const Problem& p) {
        backward(d.gradients(), d.dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask, p.scale);
    }
    std::vector<std::uint16_t> bits(const Device& d) {
        std::vector<std::uint16_t> all;
        for (const Tensor& t : {d.dq, d.dk, d.dv}) {
            const auto part = download(static_cast<const std::uint16_t*>(t.data), t.bytes() / 2);
            all.insert(all.end(), part.begin(), part.end());
        }
        return all;
    }

    static Wanted wanted(const Problem& p, DType dtype) {
        return with_bounds(p, reference::forward_backward(p), dtype);
    }
    // Every element within its bound; the first that is not is told. Tokens of no sequence: left.
    void expect_close(const Device& d, const Wanted& want, const std::string& what) {
        const auto check = [&](const char* which, const Tensor& t, const std::vector<double>& value,
                               const std::vector<double>& bound) {
            const std::vector<float> got = download(t);
            const std::size_t row = static_cast<std::size_t>(t.dim(1) * t.dim(2));
            for (std::size_t i = 0; i < value.size(); ++i) {
                ASSERT_LE(std::abs(got[i] - value[i]), bound[i] + tiny(t.dtype))
                    << what << ": " << which << " " << got[i] << ", is " << value[i]
                    << ", at token " << i / row << " number " << i % row;
            }
            for (std::size_t i = value.size(); i < got.size(); ++i) {
                ASSERT_TRUE(std::isnan(got[i])) << what << ": " << which << " wrote at " << i;
            }
        };
        check("dq", d.dq, want.value.dq, want.bound.dq);
        check("dk", d.dk, want.value.dk, want.bound.dk);
        check("dv", d.dv, want.value.dv, want.bound.dv);
    }
    // What a type loses near zero: f16 has no numbers below 2^-24.
    static double tiny(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0x1p-126; }

    void expect_reference(const Problem& p, DType dtype, const std::string& what, int spare = 0) {
        const Wanted want = wanted(p, dtype);
        memory_.reset();
        const Device d = device_copy(p, want.value, dtype, spare);
        backward(d, p);
        expect_close(d, want, what);
    }
};

std::string text(const AttentionMask& mask) {
    return "mask " + std::to_string(static_cast<int>(mask.kind)) + " block " +
           std::to_string(mask.block) + " window " + std::to_string(mask.window) + " sinks " +
           std::to_string(mask.sinks);
}

TEST_F(FlashBackwardTest, EveryMaskHeadDimAndType) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
        for (const int dim : {64, 80, 96, 128}) {
            for (const AttentionMask& mask : kMasks) {
                expect_reference(random(2, 1, dim, {150, 1}, {150, 1}, mask, dtype), dtype,
                                 "dim " + std::to_string(dim) + " " + text(mask));
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(FlashBackwardTest, OddHeadDims) {
    for (const int dim : {8, 16, 32, 40, 72, 104, 120}) {
        expect_reference(random(2, 1, dim, {70}, {70}, {}, DType::bf16), DType::bf16,
                         "dim " + std::to_string(dim));
        if (HasFatalFailure()) return;
    }
}

TEST_F(FlashBackwardTest, RaggedLengths) {
    const std::vector<int> lengths{1, 63, 64, 65, 127, 128, 129, 300};
    for (const AttentionMask& mask : kMasks) {
        for (const int dim : {64, 128}) {
            expect_reference(random(1, 1, dim, lengths, lengths, mask, DType::bf16), DType::bf16,
                             "dim " + std::to_string(dim) + " " + text(mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, LongSequence) {
    for (const Kind kind : {Kind::full, Kind::causal}) {
        expect_reference(random(1, 1, 64, {1000}, {1000}, {kind}, DType::bf16), DType::bf16,
                         "1000 tokens");
    }
}

TEST_F(FlashBackwardTest, QueriesAndKeysThatDiffer) {
    for (const AttentionMask& mask : kMasks) {
        for (const int dim : {64, 128}) {
            expect_reference(random(2, 1, dim, {5, 64, 1, 40, 0, 3, 270, 300},
                                    {270, 64, 300, 17, 9, 0, 150, 20}, mask, DType::bf16),
                             DType::bf16, "dim " + std::to_string(dim) + " " + text(mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, GroupsOfHeads) {
    for (const int kv_heads : {1, 2, 3, 6}) {
        for (const Kind kind : {Kind::full, Kind::causal}) {
            expect_reference(random(6, kv_heads, 64, {145, 3}, {145, 8}, {kind}, DType::f16),
                             DType::f16, std::to_string(kv_heads) + " kv heads");
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, ExtremeScoresGiveNoNan) {
    for (const AttentionMask& mask : kMasks) {
        Problem p = random(2, 1, 64, {150}, {150}, mask, DType::bf16);
        for (double& q : p.q) q = q < 0 ? -32 : 32;  // scores are multiples of 256, up to 8192
        for (double& k : p.k) k = k < 0 ? -32 : 32;
        expect_reference(p, DType::bf16, text(mask));
        if (HasFatalFailure()) return;
    }
}

// Rows that see no key, and rows whose scores were all -infinity, give no gradient to anything.
TEST_F(FlashBackwardTest, RowsWithoutWeightGiveNothing) {
    for (const int dim : {64, 128}) {
        const Problem p = random(2, 1, dim, {300}, {140}, {}, DType::bf16);
        expect_reference(p, DType::bf16, "more queries than keys");
        if (HasFatalFailure()) return;
        const Wanted want = wanted(p, DType::bf16);
        memory_.reset();
        Device d = device_copy(p, want.value, DType::bf16);
        std::vector<float> lse(Problem::at(2 * 300), -std::numeric_limits<float>::infinity());
        d.lse = upload(DType::f32, {2, 300}, lse);
        backward(d, p);
        for (const Tensor& t : {d.dq, d.dk, d.dv}) {
            for (const float x : download(t)) ASSERT_EQ(x, 0.0f);
        }
    }
}

// NaN in tokens that belong to no sequence neither spreads nor is overwritten.
TEST_F(FlashBackwardTest, TokensOfNoSequenceAreNeitherReadNorWritten) {
    for (const AttentionMask& mask : kMasks) {
        for (const int dim : {64, 80, 128}) {
            expect_reference(random(2, 1, dim, {150, 30}, {100, 70}, mask, DType::bf16),
                             DType::bf16, "dim " + std::to_string(dim) + " " + text(mask), 40);
            if (HasFatalFailure()) return;
        }
    }
}

// Keys without queries have gradients of 0; queries without keys too.
TEST_F(FlashBackwardTest, EmptyProblems) {
    Problem p = random(2, 1, 64, {0}, {70}, {}, DType::bf16);
    Device d = device_copy(p, reference::forward_backward(p), DType::bf16);
    backward(d, p);
    for (const Tensor& t : {d.dk, d.dv}) {
        for (const float x : download(t)) ASSERT_EQ(x, 0.0f);
    }
    p = random(2, 1, 64, {70}, {0}, {}, DType::bf16);
    d = device_copy(p, reference::forward_backward(p), DType::bf16);
    backward(d, p);
    for (const float x : download(d.dq)) ASSERT_EQ(x, 0.0f);
}

TEST_F(FlashBackwardTest, WhatItCannotDoIsSaid) {
    const Problem p = random(2, 1, 64, {7}, {7}, {}, DType::f32);
    const Device d = device_copy(p, reference::forward_backward(p), DType::f32);
    EXPECT_THROW(backward(d, p), ContractError);
    const Tensor q = poisoned(DType::bf16, {7, 2, 64}), lse = poisoned(DType::f32, {2, 7});
    ctx_.scratch = {};
    EXPECT_THROW(flash_backward(ctx_, {q, q, q}, q, q, q, q, q, lse, {}, {}, 1), ContractError);
}

TEST_F(FlashBackwardTest, HundredRunsGiveTheSameBits) {
    for (const Kind kind : {Kind::full, Kind::causal}) {
        for (const int dim : {64, 128}) {
            // More blocks than the device runs at once, so that their order differs every time.
            const Problem p = random(12, 12, dim, {1100, 300}, {1100, 300}, {kind}, DType::bf16);
            memory_.reset();
            reference::Result forward;  // any out and lse will do
            forward.out = p.dout;
            forward.lse.assign(Problem::at(p.heads * p.tokens_q()), 7.0);
            const Device d = device_copy(p, forward, DType::bf16);
            const std::size_t bytes = flash_backward_scratch_bytes(d.q, d.k, d.batch);
            ctx_.scratch = {static_cast<std::byte*>(memory_.alloc(bytes)), bytes};
            std::vector<std::uint16_t> first;
            for (int run = 0; run < 100; ++run) {
                for (const Tensor& t : {d.dq, d.dk, d.dv}) stream_->fill(t.data, 0xff, t.bytes());
                stream_->fill(ctx_.scratch.data(), run, bytes);
                flash_backward(ctx_, d.gradients(), d.dout, d.q, d.k, d.v, d.out, d.lse, d.batch,
                               p.mask, static_cast<float>(p.scale));
                const std::vector<std::uint16_t> now = bits(d);
                if (run == 0) first = now;
                ASSERT_TRUE(now == first) << "run " << run;
            }
        }
    }
}

// Bits do not depend on the other sequences, nor on whether lengths are given.
TEST_F(FlashBackwardTest, SequencesHaveTheBitsOfEachAlone) {
    for (const AttentionMask& mask : kMasks) {
        const std::vector<int> lengths{200, 1, 333};
        const Problem p = random(2, 2, 64, lengths, lengths, mask, DType::bf16);
        const reference::Result value = reference::forward_backward(p);
        memory_.reset();
        const Device all = device_copy(p, value, DType::bf16);
        backward(all, p);
        for (std::size_t s = 0; s < lengths.size(); ++s) {
            const std::int64_t first = p.cu_q[s], n = lengths[s], row = 2 * 64;
            const auto part = [&](const Tensor& t) {
                return Tensor(static_cast<std::uint16_t*>(t.data) + first * row, t.dtype,
                              {n, 2, 64});
            };
            std::vector<float> lse = download(all.lse), mine;
            for (int h = 0; h < 2; ++h) {
                const auto at = lse.begin() + h * p.tokens_q() + first;
                mine.insert(mine.end(), at, at + n);
            }
            const Tensor my_lse = upload(DType::f32, {2, n}, mine);
            const ops::FlashGradients to{poisoned(DType::bf16, {n, 2, 64}),
                                         poisoned(DType::bf16, {n, 2, 64}),
                                         poisoned(DType::bf16, {n, 2, 64})};
            backward(to, part(all.dout), part(all.q), part(all.k), part(all.v), part(all.out),
                     my_lse, {}, mask, p.scale);
            EXPECT_EQ(download(to.dq.tensor), download(part(all.dq)));
            EXPECT_EQ(download(to.dk.tensor), download(part(all.dk)));
            EXPECT_EQ(download(to.dv.tensor), download(part(all.dv)));
            if (HasFailure()) return;
        }
    }
}

// q, k and v, and their gradients, as parts of one fused tensor [tokens, (heads + 2 kv) * dim].
TEST_F(FlashBackwardTest, StridesOfAFusedProjection) {
    const Problem p = random(4, 2, 64, {170}, {170}, {}, DType::bf16);
    const reference::Result value = reference::forward_backward(p);
    const Device plain = device_copy(p, value, DType::bf16);
    backward(plain, p);
    const std::int64_t row = 8 * 64;
    const Tensor fused = poisoned(DType::bf16, {170, row});
    const Tensor gradient = poisoned(DType::bf16, {170, row});
    const auto part = [&](const Tensor& of, int first_head, std::int64_t heads) {
        return HeadRows(
            {static_cast<std::uint16_t*>(of.data) + first_head * 64, DType::bf16, {170, heads, 64}},
            row);
    };
    const auto copy = [&](const Tensor& from, const HeadRows& to) {
        for (int t = 0; t < 170; ++t) {
            const std::int64_t n = to.heads() * 64;
            stream_->on_device(static_cast<std::uint16_t*>(to.tensor.data) + t * row,
                               static_cast<std::uint16_t*>(from.data) + t * n,
                               static_cast<std::size_t>(n) * 2);
        }
    };
    copy(plain.q, part(fused, 0, 4));
    copy(plain.k, part(fused, 4, 2));
    copy(plain.v, part(fused, 6, 2));
    backward({part(gradient, 0, 4), part(gradient, 4, 2), part(gradient, 6, 2)}, plain.dout,
             part(fused, 0, 4), part(fused, 4, 2), part(fused, 6, 2), plain.out, plain.lse, {},
             p.mask, p.scale);
    const Tensor want = poisoned(DType::bf16, {170, row});
    copy(plain.dq, part(want, 0, 4));
    copy(plain.dk, part(want, 4, 2));
    copy(plain.dv, part(want, 6, 2));
    EXPECT_EQ(download(gradient), download(want));
}

// In a graph, and again after the lengths in device memory have changed.
TEST_F(FlashBackwardTest, LengthsAreReadWhenItRuns) {
    const Problem p = random(2, 1, 64, {100, 60}, {90, 70}, {}, DType::bf16);
    const Problem other = random(2, 1, 64, {60, 100}, {90, 70}, {}, DType::bf16);
    const Wanted want = wanted(p, DType::bf16), want_other = wanted(other, DType::bf16);
    Device d = device_copy(p, want.value, DType::bf16);
    const Device second = device_copy(other, want_other.value, DType::bf16);
    const std::size_t bytes = flash_backward_scratch_bytes(d.q, d.k, d.batch);
    ctx_.scratch = {static_cast<std::byte*>(memory_.alloc(bytes)), bytes};
    d.batch.max_queries = 100;
    const Graph graph = Graph::capture(*stream_, [&] {
        flash_backward(ctx_, d.gradients(), d.dout, d.q, d.k, d.v, d.out, d.lse, d.batch, p.mask,
                       static_cast<float>(p.scale));
    });
    graph.launch(*stream_);
    expect_close(d, want, "first");
    const auto copy = [&](const void* from, const void* to, std::size_t n) {
        stream_->on_device(const_cast<void*>(to), from, n);
    };
    copy(second.q.data, d.q.data, d.q.bytes());
    copy(second.k.data, d.k.data, d.k.bytes());
    copy(second.v.data, d.v.data, d.v.bytes());
    copy(second.out.data, d.out.data, d.out.bytes());
    copy(second.dout.data, d.dout.data, d.dout.bytes());
    copy(second.lse.data, d.lse.data, d.lse.bytes());
    copy(second.batch.cu_q, d.batch.cu_q, 3 * 4);
    graph.launch(*stream_);
    expect_close(d, want_other, "second");
}

}  // namespace
}  // namespace mr::cuda
