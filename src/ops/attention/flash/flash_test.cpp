#include "ops/attention/flash/flash.h"

#include <algorithm>
#include <functional>
#include <string>

#include "ops/attention/flash/bounds.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;
using reference::Problem;
using reference::Result;
using Kind = AttentionMask::Kind;

constexpr AttentionMask kMasks[] = {
    {Kind::full},
    {Kind::causal},
    {Kind::block_causal, 16},
    {Kind::causal, 1, 37},           // a window
    {Kind::causal, 1, 20, 4},        // a window and sinks
    {Kind::causal, 1, 33, 70},       // sinks beyond a tile
    {Kind::block_causal, 7, 20, 2},  // block-causal with window and sinks
    {Kind::block_causal, 16, 0, 0, 21},
    {Kind::block_causal, 7, 20, 2, 3},
    {Kind::full, 1, 5, 2},
    {Kind::block_before, 16},
    {Kind::block_before, 7, 20, 2},
};

Floats floats(const std::vector<double>& from, Shape shape) {
    Floats out(shape);
    EXPECT_EQ(out.values.size(), from.size());
    std::transform(from.begin(), from.end(), out.values.begin(),
                   [](double x) { return static_cast<float>(x); });
    return out;
}

// The op's tensors for a problem, with poisoned outputs.
struct Attempt {
    explicit Attempt(const Problem& p)
        : problem(p),
          q(floats(p.q, q_shape())),
          k(floats(p.k, k_shape())),
          v(floats(p.v, k_shape())),
          dout(floats(p.dout, q_shape())),
          out(q_shape()),
          lse({p.heads, p.tokens_q()}),
          dq(q_shape()),
          dk(k_shape()),
          dv(k_shape()) {}

    Shape q_shape() const { return {problem.tokens_q(), problem.heads, problem.head_dim}; }
    Shape k_shape() const { return {problem.tokens_k(), problem.kv_heads, problem.head_dim}; }
    PackedBatch batch() const { return {problem.cu_q, problem.cu_k}; }
    float scale() const { return static_cast<float>(problem.scale); }

    void forward(const Context& ctx) {
        flash_forward(ctx, out.tensor(), lse, q.tensor(), k.tensor(), v.tensor(), batch(),
                      problem.mask, scale());
    }
    void backward(const Context& ctx) {
        flash_backward(ctx, {dq.tensor(), dk.tensor(), dv.tensor()}, dout.tensor(), q.tensor(),
                       k.tensor(), v.tensor(), out.tensor(), lse, batch(), problem.mask, scale());
    }
    Attempt& both(int threads = 1) {
        Bench bench(threads, flash_backward_scratch_bytes(problem.head_dim, threads));
        forward(bench);
        backward(bench);
        return *this;
    }
    std::vector<const Floats*> results() const { return {&out, &lse, &dq, &dk, &dv}; }

    Problem problem;
    Floats q, k, v, dout, out, lse, dq, dk, dv;
};

void expect_same_bits(const Attempt& a, const Attempt& b) {
    const auto x = a.results(), y = b.results();
    for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(same_bits(x[i]->values, y[i]->values)) << "result " << i;
    }
}

void expect_near(const char* what, const Floats& got, const std::vector<double>& want,
                 const std::vector<double>& bound) {
    ASSERT_EQ(got.values.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (std::isinf(want[i])) {
            ASSERT_EQ(got.values[i], want[i]) << what << " " << i;
        } else {
            ASSERT_NEAR(got.values[i], want[i], bound[i]) << what << " " << i;
        }
    }
}

void expect_reference(const Problem& p) {
    SCOPED_TRACE(::testing::Message() << "heads " << p.heads << "/" << p.kv_heads << " dim "
                                      << p.head_dim << " mask " << static_cast<int>(p.mask.kind)
                                      << " window " << p.mask.window << " sinks " << p.mask.sinks);
    const Result want = reference::forward_backward(p);
    const Result bound = reference::error_bounds(p, want, {});
    for_each_isa([&] {
        Attempt run(p);
        run.both();
        expect_near("out", run.out, want.out, bound.out);
        expect_near("lse", run.lse, want.lse, bound.lse);
        expect_near("dq", run.dq, want.dq, bound.dq);
        expect_near("dk", run.dk, want.dk, bound.dk);
        expect_near("dv", run.dv, want.dv, bound.dv);
    });
}

TEST(Flash, EveryMaskAndHeadDim) {
    for (int dim : {16, 64, 80, 96, 128, 256}) {
        for (const AttentionMask& mask : kMasks) {
            const std::vector<int> lengths = dim <= 80 ? std::vector{1, 90} : std::vector{66};
            expect_reference(reference::random_problem(2, 1, dim, lengths, lengths, mask, 21));
            if (HasFatalFailure()) return;
        }
    }
}

TEST(Flash, OddHeadDims) {
    for (int dim : {8, 24, 40, 200}) {
        expect_reference(reference::random_problem(2, 1, dim, {37}, {37}, {}, 22));
    }
}

TEST(Flash, RaggedLengths) {
    const std::vector<int> lengths{1, 63, 64, 65, 127, 300};
    for (const AttentionMask& mask : kMasks) {
        expect_reference(reference::random_problem(1, 1, 16, lengths, lengths, mask, 23));
        if (HasFatalFailure()) return;
    }
}

TEST(Flash, QueriesAndKeysThatDiffer) {
    for (const AttentionMask& mask : kMasks) {
        expect_reference(reference::random_problem(2, 1, 16, {5, 64, 1, 40, 0, 3, 70},
                                                   {70, 64, 130, 17, 9, 0, 150}, mask, 24));
        if (HasFatalFailure()) return;
    }
}

TEST(Flash, GroupsOfHeads) {
    for (int kv_heads : {1, 2, 3, 6}) {
        expect_reference(reference::random_problem(6, kv_heads, 32, {45, 3}, {45, 8}, {}, 25));
    }
}

TEST(Flash, ExtremeScoresGiveNoNan) {
    for (const AttentionMask& mask : kMasks) {
        if (mask.kind == Kind::block_before) continue;  // rows that see nothing have no finite lse
        Problem p = reference::random_problem(2, 1, 16, {70}, {70}, mask, 26);
        for (double& q : p.q) q = q < 0 ? -50 : 50;  // scores are multiples of 1250, up to 1e4
        for (double& k : p.k) k = k < 0 ? -50 : 50;
        expect_reference(p);
        for_each_isa([&] {
            Attempt run(p);
            run.both();
            for (const Floats* part : run.results()) {
                for (float x : part->values) ASSERT_TRUE(std::isfinite(x));
            }
        });
    }
}

// Scores that overflow to -infinity: no weight, so no gradient.
TEST(Flash, RowsOfMinusInfinity) {
    for_each_isa([] {
        Problem p = reference::random_problem(1, 1, 8, {3}, {3}, {Kind::full}, 27);
        for (double& q : p.q) q = 1e20;
        for (double& k : p.k) k = -1e20;
        Attempt run(p);
        run.both();
        for (float x : run.lse.values) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
        for (const Floats* part : {&run.out, &run.dq, &run.dk, &run.dv}) {
            for (float x : part->values) EXPECT_EQ(x, 0.0f);
        }
    });
}

TEST(Flash, RowsThatSeeNothingAreZero) {
    const Problem p = reference::random_problem(2, 1, 16, {9}, {4}, {}, 28);
    for_each_isa([&] {
        Attempt run(p);
        run.both();
        for (int i = 0; i < 5; ++i) {
            for (int head = 0; head < 2; ++head) {
                EXPECT_EQ(run.lse.values[p.lse_at(0, i, head)],
                          -std::numeric_limits<float>::infinity());
                for (int d = 0; d < 16; ++d) {
                    const std::size_t at = p.q_at(0, i, head) + Problem::at(d);
                    EXPECT_EQ(run.out.values[at], 0.0f);
                    EXPECT_EQ(run.dq.values[at], 0.0f);
                }
            }
        }
    });
}

TEST(Flash, BitsDoNotDependOnThreadsOrRepetition) {
    for_each_isa([] {
        for (const AttentionMask& mask : kMasks) {
            const Problem p =
                reference::random_problem(4, 2, 40, {100, 3, 64}, {130, 3, 64}, mask, 29);
            Attempt one(p);
            one.both();
            for (int threads : {1, 2, 3, 5}) {
                Attempt again(p);
                again.both(threads);
                expect_same_bits(one, again);
            }
        }
    });
}

TEST(Flash, PackedSequencesHaveTheBitsOfEachAlone) {
    for_each_isa([] {
        const std::vector<int> q{70, 1, 33}, k{90, 65, 33};
        const Problem p = reference::random_problem(4, 2, 24, q, k, {Kind::causal, 1, 20, 3}, 30);
        Attempt all(p);
        all.both();
        for (std::size_t i = 0; i < q.size(); ++i) {
            Problem alone = p;
            alone.cu_q = {0, q[i]};
            alone.cu_k = {0, k[i]};
            const auto cut = [&](const auto& from, int first, int count, int heads) {
                const auto begin = from.begin() + std::ptrdiff_t{first} * heads * 24;
                return std::decay_t<decltype(from)>(begin,
                                                    begin + std::ptrdiff_t{count} * heads * 24);
            };
            alone.q = cut(p.q, p.cu_q[i], q[i], 4);
            alone.dout = cut(p.dout, p.cu_q[i], q[i], 4);
            alone.k = cut(p.k, p.cu_k[i], k[i], 2);
            alone.v = cut(p.v, p.cu_k[i], k[i], 2);
            Attempt run(alone);
            run.both();
            EXPECT_TRUE(same_bits(run.out.values, cut(all.out.values, p.cu_q[i], q[i], 4)));
            EXPECT_TRUE(same_bits(run.dq.values, cut(all.dq.values, p.cu_q[i], q[i], 4)));
            EXPECT_TRUE(same_bits(run.dk.values, cut(all.dk.values, p.cu_k[i], k[i], 2)));
            EXPECT_TRUE(same_bits(run.dv.values, cut(all.dv.values, p.cu_k[i], k[i], 2)));
        }
    });
}

// q, k and v, and their gradients, as parts of one fused tensor [tokens, (heads + 2 kv) * dim].
TEST(Flash, StridesOfAFusedProjection) {
    const Problem p = reference::random_problem(4, 2, 24, {70}, {70}, {}, 31);
    Attempt plain(p);
    plain.both();
    const int row = 8 * 24;
    Floats fused({70, row}), gradient({70, row});
    const auto part = [&](Floats& of, int first_head, int heads) {
        return HeadRows(
            {of.values.data() + std::ptrdiff_t{first_head} * 24, DType::f32, {70, heads, 24}}, row);
    };
    const auto copy = [&](const Floats& from, const HeadRows& to) {
        for (int t = 0; t < 70; ++t) {
            const std::int64_t n = to.heads() * 24;
            std::copy_n(from.values.begin() + t * n, n, to.f32(t, 0));
        }
    };
    copy(plain.q, part(fused, 0, 4));
    copy(plain.k, part(fused, 4, 2));
    copy(plain.v, part(fused, 6, 2));
    Attempt run(p);
    Bench bench(2, flash_backward_scratch_bytes(24, 2));
    const HeadRows q = part(fused, 0, 4), k = part(fused, 4, 2), v = part(fused, 6, 2);
    // One sequence: without lengths.
    flash_forward(bench, run.out.tensor(), run.lse, q, k, v, {}, p.mask, run.scale());
    flash_backward(bench, {part(gradient, 0, 4), part(gradient, 4, 2), part(gradient, 6, 2)},
                   run.dout.tensor(), q, k, v, run.out.tensor(), run.lse, {}, p.mask, run.scale());
    EXPECT_TRUE(same_bits(run.out.values, plain.out.values));
    EXPECT_TRUE(same_bits(run.lse.values, plain.lse.values));
    Floats want({70, row});
    copy(plain.dq, part(want, 0, 4));
    copy(plain.dk, part(want, 4, 2));
    copy(plain.dv, part(want, 6, 2));
    EXPECT_TRUE(same_bits(gradient.values, want.values));
}

TEST(Flash, TokensOfNoSequenceAreLeftAsTheyAre) {
    Problem p = reference::random_problem(1, 1, 8, {4, 2}, {4, 3}, {}, 32);
    for_each_isa([&] {
        Attempt run(p);
        run.problem.cu_q = {0, 4};
        run.problem.cu_k = {0, 4};
        Bench bench(1, flash_backward_scratch_bytes(8, 1));
        run.forward(bench);
        run.backward(bench);
        for (std::size_t i = 0; i < run.out.values.size(); ++i) {
            EXPECT_EQ(std::isnan(run.out.values[i]), i >= 4 * 8);
            EXPECT_EQ(std::isnan(run.dq.values[i]), i >= 4 * 8);
        }
        for (std::size_t i = 0; i < run.dk.values.size(); ++i) {
            EXPECT_EQ(std::isnan(run.dk.values[i]), i >= 4 * 8);
            EXPECT_EQ(std::isnan(run.dv.values[i]), i >= 4 * 8);
        }
    });
}

TEST(Flash, LedgerCountsWhatTheMaskLeaves) {
    Attempt run(reference::random_problem(4, 2, 8, {10}, {10}, {}, 33));
    Bench bench(1, flash_backward_scratch_bytes(8, 1));
    run.forward(bench);
    const std::uint64_t q = 10 * 4 * 8 * 4, k = 10 * 2 * 8 * 4, lse = 10 * 4 * 4;
    expect_record(bench.ledger.op(OpKind::attention), 1, q + 2 * k, q + lse, 55 * 4 * 4 * 8);
    run.backward(bench);
    expect_record(bench.ledger.op(OpKind::attention), 2, q + 2 * k + 3 * q + 2 * k + lse,
                  q + lse + q + 2 * k, 55 * 14 * 4 * 8);
}

// Runs both ops with something broken and expects an error with that sentence.
void expect_broken(const char* contract, const std::function<void(Attempt&)>& damage,
                   std::size_t scratch = 1 << 20) {
    Attempt run(reference::random_problem(4, 2, 16, {6, 4}, {6, 5}, {}, 34));
    Bench bench(1, scratch);
    damage(run);
    for (const bool backward : {false, true}) {
        try {
            backward ? run.backward(bench) : run.forward(bench);
            ADD_FAILURE() << "accepted: " << contract;
        } catch (const ContractError& error) {
            EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
        }
    }
}

TEST(Flash, BrokenContractsAreNamed) {
    Attempt good(reference::random_problem(4, 2, 16, {6, 4}, {6, 5}, {}, 34));
    EXPECT_NO_THROW(good.both());
    expect_broken("never fall", [](Attempt& r) { r.problem.cu_q = {0, 6, 4}; });
    expect_broken("never fall", [](Attempt& r) { r.problem.cu_k = {0, 6, 5}; });
    expect_broken("begin with 0", [](Attempt& r) { r.problem.cu_k = {1, 6, 11}; });
    expect_broken("same sequences", [](Attempt& r) { r.problem.cu_k = {0, 11}; });
    expect_broken("scale is positive", [](Attempt& r) { r.problem.scale = 0; });
    expect_broken("scale is positive", [](Attempt& r) { r.problem.scale = std::nan(""); });
    expect_broken("the mask has", [](Attempt& r) { r.problem.mask.block = 0; });
    expect_broken("the mask has", [](Attempt& r) { r.problem.mask.window = -1; });
    expect_broken("the mask has", [](Attempt& r) { r.problem.mask.sinks = -1; });
    expect_broken("kv_heads", [](Attempt& r) { r.k = r.v = Floats({11, 3, 16}); });
    expect_broken("shape of k", [](Attempt& r) { r.v = Floats({10, 2, 16}); });
    expect_broken("one head_dim", [](Attempt& r) { r.k = r.v = Floats({11, 2, 24}); });
    expect_broken("multiple of 8", [](Attempt& r) {
        r.q = r.out = Floats({10, 4, 20});
        r.k = r.v = Floats({11, 2, 20});
    });
    expect_broken("multiple of 8", [](Attempt& r) {
        r.q = r.out = Floats({10, 4, 264});
        r.k = r.v = Floats({11, 2, 264});
    });
    expect_broken("[heads, tokens_q]", [](Attempt& r) { r.lse = Floats({10, 4}); });
    expect_broken("shape of q", [](Attempt& r) { r.out = Floats({10, 4, 8}); });
    expect_broken("[tokens, heads, head_dim]", [](Attempt& r) { r.q = Floats({10, 64}); });
    expect_broken("end inside", [](Attempt& r) { r.k = r.v = Floats({10, 2, 16}); });
    expect_broken(
        "scratch_bytes()", [](Attempt&) {}, 64);
}

TEST(Flash, BrokenPointersAndStridesAreNamed) {
    Attempt run(reference::random_problem(4, 2, 16, {6}, {6}, {}, 35));
    Bench bench(1, flash_backward_scratch_bytes(16, 1));
    const auto forward = [&](const HeadRows& out, const Tensor& lse, const HeadRows& q) {
        flash_forward(bench, out, lse, q, run.k.tensor(), run.v.tensor(), {}, {}, 1);
    };
    const Tensor q = run.q, out = run.out, lse = run.lse;
    EXPECT_NO_THROW(forward(out, lse, q));
    EXPECT_THROW(forward(out, lse, HeadRows(q, 63)), ContractError);
    EXPECT_THROW(forward(out, lse, Tensor(nullptr, DType::f32, q.shape)), ContractError);
    EXPECT_THROW(forward(out, lse, Tensor(q.data, DType::f16, q.shape)), ContractError);
    EXPECT_THROW(forward(Tensor(nullptr, DType::f32, q.shape), lse, q), ContractError);
    EXPECT_THROW(forward(out, Tensor(nullptr, DType::f32, lse.shape), q), ContractError);
    EXPECT_THROW(forward(out, lse, Tensor(static_cast<char*>(q.data) + 2, DType::f32, q.shape)),
                 ContractError);
    const auto backward = [&](const FlashGradients& gradients) {
        flash_backward(bench, gradients, run.dout.tensor(), q, run.k.tensor(), run.v.tensor(), out,
                       lse, {}, {}, 1);
    };
    EXPECT_NO_THROW(backward({run.dq.tensor(), run.dk.tensor(), run.dv.tensor()}));
    EXPECT_THROW(backward({HeadRows(), run.dk.tensor(), run.dv.tensor()}), ContractError);
    EXPECT_THROW(backward({run.dq.tensor(), run.dq.tensor(), run.dv.tensor()}), ContractError);
    EXPECT_THROW(backward({run.dq.tensor(), run.dk.tensor(), HeadRows(run.dv, 8)}), ContractError);
}

}  // namespace
}  // namespace mr::ops
