// The backward of attention on plain tensors: bits, strides, graphs, streams and neighbours.
#include <tuple>

#include "ops/attention/flash/backward/testing.h"

namespace mr::cuda {
namespace {

namespace reference = ops::reference;

TEST_F(FlashBackwardTest, HundredRunsGiveTheSameBits) {
    for (const Kind kind : {Kind::full, Kind::causal}) {
        for (const int dim : {64, 128}) {
            const DType dtype = (kind == Kind::full) == (dim == 64) ? DType::f16 : DType::bf16;
            expect_same_bits(dim, {kind}, dtype);
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, HundredRunsGiveTheSameBitsWithHeadsOf80And96) {
    expect_same_bits(80, {Kind::causal}, DType::bf16);
    if (HasFatalFailure()) return;
    expect_same_bits(96, {Kind::full}, DType::bf16);
    if (HasFatalFailure()) return;
    expect_same_bits(96, {Kind::causal}, DType::f16);
}

TEST_F(FlashBackwardTest, HundredRunsGiveTheSameBitsWithTheOtherMasks) {
    for (const auto& [dim, dtype, mask] :
         {std::tuple{64, DType::bf16, AttentionMask{Kind::block_causal, 48}},
          {128, DType::f16, AttentionMask{Kind::block_causal, 50, 300, 140}},
          {96, DType::bf16, AttentionMask{Kind::causal, 1, 137}},
          {64, DType::f32, AttentionMask{Kind::causal, 1, 200, 4}}}) {
        expect_same_bits(dim, mask, dtype);
        if (HasFatalFailure()) return;
    }
}

// Bits do not depend on the other sequences, nor on whether lengths are given.
TEST_F(FlashBackwardTest, SequencesHaveTheBitsOfEachAlone) {
    for (const AttentionMask& mask : kBackwardMasks) {
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

// A block per tile of keys, or per pair with all tiles: additions in the same order.
TEST_F(FlashBackwardTest, TilesAndPairsHaveTheSameBits) {
    if (this_gpu().sm != 90) GTEST_SKIP() << "there is one kind of blocks";
    for (const AttentionMask& mask : {AttentionMask{Kind::full},
                                      {Kind::causal},
                                      {Kind::block_causal, 48},
                                      {Kind::block_before, 48}}) {
        for (const int kv_heads : {2, 4}) {
            for (const DType dtype : {DType::bf16, DType::f16}) {
                const Problem p = random(4, kv_heads, 64, {1024, 700, 128, 0, 1, 300},
                                         {1024, 700, 128, 5, 130, 200}, mask, dtype);
                memory_.reset();
                const Device d = any_forward(p, dtype);
                backward(d, p, Path::tiles);
                const std::vector<std::uint16_t> tiles = bits(d);
                for (int run = 0; run < 20; ++run) {
                    poison(d);
                    backward(d, p, Path::pairs);
                    ASSERT_TRUE(bits(d) == tiles) << text(mask) << ", " << kv_heads << " kv heads";
                }
            }
        }
    }
}

// Equal sequences without lengths, where blocks have whole pairs: the same bits as each alone. Rows
// of the first block of block_before see no key, although they have weight elsewhere: a finite lse.
TEST_F(FlashBackwardTest, ManySequencesHaveTheBitsOfEachAlone) {
    const int sequences = 40, tokens = 400, heads = 4;
    const Path path = this_gpu().sm == 90 ? Path::pairs : Path::chosen;
    const std::vector<int> lengths(sequences, tokens);
    for (const AttentionMask& mask :
         {AttentionMask{Kind::causal}, {Kind::block_before, 16}, {Kind::block_before, 200}}) {
        SCOPED_TRACE(text(mask));
        memory_.reset();
        const Problem p = random(heads, heads, 64, lengths, lengths, mask, DType::bf16);
        const Device all = any_forward(p, DType::bf16);
        FlashBatch batch;
        batch.sequences = sequences, batch.max_queries = batch.max_keys = tokens;
        backward(all.gradients(), all.dout, all.q, all.k, all.v, all.out, all.lse, batch, p.mask,
                 p.scale, path);
        for (const int s : {0, 17, sequences - 1}) {
            const auto part = [&](const Tensor& t) {
                return Tensor(
                    static_cast<std::uint16_t*>(t.data) + std::int64_t{s} * tokens * heads * 64,
                    t.dtype, {tokens, heads, 64});
            };
            std::vector<float> sevens(static_cast<std::size_t>(heads * tokens), 7.0f);
            const ops::FlashGradients to{poisoned(DType::bf16, {tokens, heads, 64}),
                                         poisoned(DType::bf16, {tokens, heads, 64}),
                                         poisoned(DType::bf16, {tokens, heads, 64})};
            backward(to, part(all.dout), part(all.q), part(all.k), part(all.v), part(all.out),
                     upload(DType::f32, {heads, tokens}, sevens), {}, p.mask, p.scale);
            EXPECT_EQ(download(to.dq.tensor), download(part(all.dq)));
            EXPECT_EQ(download(to.dk.tensor), download(part(all.dk)));
            EXPECT_EQ(download(to.dv.tensor), download(part(all.dv)));
            if (mask.kind != Kind::block_before) continue;
            const std::vector<float> dq = download(part(all.dq));
            for (int i = 0; i < mask.block * heads * 64; ++i) {
                ASSERT_EQ(dq[static_cast<std::size_t>(i)], 0) << i;
            }
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
    d.batch.max_queries = 100;
    const Context ctx = with_scratch(d, *stream_);
    const Graph graph = Graph::capture(*stream_, [&] { call(ctx, d, p); });
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

// Calls after one another in a graph, in the same scratch: none begins before the last has ended.
TEST_F(FlashBackwardTest, SeveralCallsInAGraph) {
    const std::vector<Problem> problems{
        random(4, 2, 64, {700}, {700}, {Kind::causal}, DType::bf16),
        random(4, 4, 128, {300, 500}, {500, 300}, {Kind::full}, DType::bf16),
        random(4, 1, 64, {900}, {900}, {Kind::causal, 1, 200, 3}, DType::bf16)};
    std::vector<Device> devices;
    std::vector<std::vector<std::uint16_t>> alone;
    Context ctx;
    for (const Problem& p : problems) {
        devices.push_back(any_forward(p, DType::bf16));
        const Context mine = with_scratch(devices.back(), *stream_);
        if (mine.scratch.size() > ctx.scratch.size()) ctx = mine;
        call(mine, devices.back(), p);
        alone.push_back(bits(devices.back()));
    }
    for (const bool dependent : {false, true}) {
        ctx.dependent_launch = dependent;
        const Graph graph = Graph::capture(*stream_, [&] {
            for (std::size_t i = 0; i < problems.size(); ++i) call(ctx, devices[i], problems[i]);
        });
        for (int run = 0; run < 20; ++run) {
            for (const Device& d : devices) poison(d);
            graph.launch(*stream_);
            graph.launch(*stream_);
            for (std::size_t i = 0; i < devices.size(); ++i) {
                ASSERT_TRUE(bits(devices[i]) == alone[i]) << "run " << run << " call " << i;
            }
        }
    }
}

// Each has more blocks than the device has multiprocessors.
TEST_F(FlashBackwardTest, TwoStreamsAtOnce) {
    for (const int dim : {64, 128}) {
        memory_.reset();
        Stream other;
        Stream* streams[] = {stream_.get(), &other};
        const Problem p[] = {
            random(6, 6, dim, {4096}, {4096}, {Kind::full}, DType::bf16),
            random(6, 6, dim, {4096}, {4096}, {Kind::causal}, DType::bf16),
        };
        Device d[2];
        Context ctx[2];
        std::vector<std::uint16_t> alone[2];
        for (int i = 0; i < 2; ++i) {
            d[i] = any_forward(p[i], DType::bf16);
            ctx[i] = with_scratch(d[i], *streams[i]);
            call(ctx[i], d[i], p[i]);
            streams[i]->synchronize();
            alone[i] = bits(d[i]);
        }
        for (int run = 0; run < 20; ++run) {
            for (const Device& device : d) poison(device);
            stream_->synchronize();
            for (int again = 0; again < 3; ++again) {
                for (int i = 0; i < 2; ++i) call(ctx[i], d[i], p[i]);
            }
            other.synchronize();
            for (int i = 0; i < 2; ++i) ASSERT_TRUE(bits(d[i]) == alone[i]) << "run " << run;
        }
    }
}

// NaN in one sequence, and infinities in its lse, do not affect its neighbours.
TEST_F(FlashBackwardTest, NanInANeighbourStaysThere) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const AttentionMask& mask : kBackwardMasks) {
            const std::vector<int> lengths{100, 30, 77};
            const Problem p = random(2, 1, 80, lengths, lengths, mask, dtype);
            const Wanted want = wanted(p, dtype);
            for (const Path path : paths(dtype, p.head_dim)) {
                memory_.reset();
                const Device d = device_copy(p, want.value, dtype);
                const auto spoil = [&](const Tensor& t) {
                    const auto row =
                        static_cast<std::size_t>(t.bytes() / Problem::at(p.tokens_q()));
                    stream_->fill(static_cast<std::byte*>(t.data) + 100 * row, 0xff, 30 * row);
                };
                for (const Tensor& t : {d.q, d.k, d.v, d.out, d.dout}) spoil(t);
                for (int h = 0; h < 2; ++h) {
                    stream_->fill(static_cast<float*>(d.lse.data) + h * p.tokens_q() + 100, 0xff,
                                  30 * sizeof(float));
                }
                backward(d, p, path);
                const auto check = [&](const Tensor& t, const std::vector<double>& value,
                                       const std::vector<double>& bound) {
                    const std::vector<float> got = download(t);
                    const std::size_t row = got.size() / Problem::at(p.tokens_q());
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        if (i / row >= 100 && i / row < 130) continue;
                        ASSERT_LE(std::abs(got[i] - value[i]), bound[i] + tiny(dtype))
                            << name(path) << " " << text(mask) << " token " << i / row;
                    }
                };
                check(d.dq, want.value.dq, want.bound.dq);
                check(d.dk, want.value.dk, want.bound.dk);
                check(d.dv, want.value.dv, want.bound.dv);
                if (HasFatalFailure()) return;
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
