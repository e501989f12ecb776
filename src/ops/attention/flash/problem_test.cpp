// What attention on the GPU refuses, and which tiles its kernels visit: the parts that need no GPU.
#include "ops/attention/flash/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ops/attention/flash/reference.h"
#include "ops/attention/mask_testing.h"

namespace mr::cuda::flash {
namespace {

using ops::AttentionMask;
using Kind = AttentionMask::Kind;

std::vector<AttentionMask> masks() {
    return {{Kind::full},
            {Kind::causal},
            {Kind::block_causal, 5},
            {Kind::block_causal, 64},
            {Kind::causal, 1, 7},
            {Kind::causal, 1, 20, 3},
            {Kind::causal, 1, 9, 30},
            {Kind::full, 1, 12},
            {Kind::full, 1, 12, 4},
            {Kind::block_causal, 6, 15, 2},
            {Kind::block_causal, 5, 0, 0, 2},
            {Kind::block_causal, 64, 0, 0, 63},
            {Kind::block_causal, 6, 15, 2, 5},
            {Kind::causal, 1, 1 << 30, 1 << 30},
            {Kind::block_before, 5},
            {Kind::block_before, 64},
            {Kind::block_before, 6, 15, 2}};
}

// Every visible pair is in a visited tile, every visited tile has one, no tile is visited twice,
// later visits go to earlier keys, and a tile that is not cut is entirely visible.
template <int kRows, int kKeys>
void expect_tiles(const AttentionMask& words, int queries, int keys) {
    const Mask mask(words);
    const Sequence s{0, 0, queries, keys};
    const auto seen = [&](int row, int key, bool any) {
        for (int i = row; i < std::min(row + kRows, queries); ++i) {
            for (int j = key; j < key + kKeys; ++j) {
                if ((j < keys && mask.sees(s.position(i), j, keys)) == any) return any;
            }
        }
        return !any;
    };
    for (int row = 0; row < queries; row += kRows) {
        const KeyTiles<kKeys> tiles(mask, s.position(row),
                                    s.position(std::min(row + kRows, queries) - 1), keys);
        std::vector<int> visits(static_cast<std::size_t>(keys / kKeys + 1), 0);
        int walked = tiles.at(0);  // below 0: none
        for (int i = 0; i < tiles.count(); ++i) {
            const int n = tiles.at(i);
            ASSERT_EQ(walked, n);
            walked = tiles.after(n);
            ASSERT_LT(walked, n);
            ASSERT_TRUE(n >= 0 && n < keys && n % kKeys == 0) << n;
            ++visits[static_cast<std::size_t>(n / kKeys)];
            if (!tiles.cut(n)) {
                ASSERT_TRUE(seen(row, n, false)) << row << ' ' << n;
            }
        }
        ASSERT_LT(walked, 0);
        for (int n = 0; n < keys; n += kKeys) {
            ASSERT_EQ(visits[static_cast<std::size_t>(n / kKeys)], seen(row, n, true))
                << "queries " << queries << " keys " << keys << " row " << row << " key " << n;
            ASSERT_EQ(tiles.visits(n), seen(row, n, true)) << row << ' ' << n;
        }
    }
    for (int n = 0; n < keys; n += kKeys) {
        const QueryTiles<kRows> tiles(mask, s, n, std::min(kKeys, keys - n));
        for (int row = 0; row < queries; row += kRows) {
            const int t = row / kRows;
            const bool visited = t >= tiles.begin && t < tiles.end;
            ASSERT_EQ(visited, seen(row, n, true))
                << "queries " << queries << " keys " << keys << " row " << row << " key " << n;
            if (visited && n + kKeys <= keys && !tiles.cut(t)) {
                ASSERT_TRUE(seen(row, n, false));
            }
        }
    }
}

TEST(FlashMask, TilesAreWhatIsSeen) {
    for (const AttentionMask& words : masks()) {
        for (const int keys : {1, 7, 8, 9, 31, 64, 100}) {
            for (const int queries : {1, 5, 8, 33, 100, 131}) {
                expect_tiles<8, 8>(words, queries, keys);
                expect_tiles<16, 4>(words, queries, keys);
                expect_tiles<4, 11>(words, queries, keys);
            }
        }
    }
}

TEST(FlashMask, TilesOfBlocksFromEveryOrigin) {
    for (const AttentionMask& words : ops::reference::origin_masks()) {
        SCOPED_TRACE(::testing::Message() << "block " << words.block << " origin " << words.origin);
        for (const int keys : {1, 7, 33, 70}) {
            for (const int queries : {1, 33, 80}) {
                expect_tiles<8, 8>(words, queries, keys);
                expect_tiles<4, 11>(words, queries, keys);
                if (::testing::Test::HasFatalFailure()) return;
            }
        }
    }
}

TEST(FlashMask, FewTilesAreCut) {
    // With equal tiles a causal diagonal cuts one tile per row, and none above it is visited.
    const Mask mask{AttentionMask{}};
    for (int row = 0; row < 64; row += 8) {
        const KeyTiles<8> tiles(mask, row, row + 7, 64);
        ASSERT_EQ(tiles.count(), row / 8 + 1);
        for (int i = 0; i < tiles.count(); ++i) EXPECT_EQ(tiles.cut(tiles.at(i)), i == 0);
    }
}

struct Call {
    Context ctx;
    std::vector<std::byte> memory = std::vector<std::byte>(16);
    DType dtype = DType::bf16;
    ops::HeadRows q, k, v, out, dout, dq, dk, dv;
    Tensor lse;
    FlashBatch batch;
    AttentionMask mask;
    float scale = 1;

    Call() {
        ctx.cuda = reinterpret_cast<Stream*>(at());  // never used
        shapes(10, 12, 4, 2, 64);
    }
    void* at(std::size_t offset = 0) {
        const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16;
        return reinterpret_cast<void*>(begin + offset);  // only addresses matter
    }
    void shapes(int tokens_q, int tokens_k, int heads, int kv_heads, int dim) {
        q = out = dout = dq = Tensor(at(), dtype, {tokens_q, heads, dim});
        k = v = dk = dv = Tensor(at(), dtype, {tokens_k, kv_heads, dim});
        lse = Tensor(at(), DType::f32, {heads, tokens_q});
    }
    Problem forward() { return checked_forward(ctx, out, lse, q, k, v, batch, mask, scale); }
    Problem backward(std::size_t scratch_bytes = 0) {
        BackwardViews views;
        return checked_backward(ctx, {dq, dk, dv}, dout, q, k, v, out, lse, batch, mask, scale,
                                scratch_bytes, views);
    }
};

template <typename Body>
void expect_refused(const char* contract, Body&& body) {
    try {
        body();
        ADD_FAILURE() << "accepted: " << contract;
    } catch (const ContractError& error) {
        EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
    }
}

void expect_broken(const char* contract, const std::function<void(Call&)>& damage) {
    Call call;
    damage(call);
    expect_refused(contract, [&] { call.forward(); });
    expect_refused(contract, [&] { call.backward(); });
}

TEST(FlashProblem, BrokenContractsAreNamed) {
    Call good;
    EXPECT_NO_THROW(good.forward());
    EXPECT_NO_THROW(good.backward());
    const std::int32_t cu[2] = {};
    expect_broken("a stream", [](Call& c) { c.ctx.cuda = nullptr; });
    expect_broken("f32, f16 or bf16", [](Call& c) { c.q.tensor.dtype = DType::i32; });
    expect_broken("all of one type", [](Call& c) { c.k.tensor.dtype = DType::f16; });
    expect_broken("all of one type", [](Call& c) { c.out.tensor.dtype = DType::f32; });
    expect_broken("[tokens, heads, head_dim]", [](Call& c) { c.q.tensor.shape = {10, 256}; });
    expect_broken("no less than heads * head_dim", [](Call& c) { c.q.token_stride = 255; });
    expect_broken("less than 2^38 elements", [](Call& c) { c.k.token_stride = 1ll << 38; });
    expect_broken("16 bytes apart", [](Call& c) { c.v.token_stride += 4; });
    expect_broken("no null pointers", [](Call& c) { c.v.tensor.data = nullptr; });
    expect_broken("no null pointers", [](Call& c) { c.lse.data = nullptr; });
    expect_broken("begin at a multiple of 16", [](Call& c) { c.k.tensor.data = c.at(8); });
    expect_broken("multiple of 4 bytes", [](Call& c) { c.lse.data = c.at(2); });
    expect_broken("multiple of 8", [](Call& c) { c.shapes(10, 12, 4, 2, 68); });
    expect_broken("to 128 backward", [](Call& c) { c.shapes(10, 12, 4, 2, 264); });
    expect_broken("multiple of kv_heads", [](Call& c) { c.shapes(10, 12, 4, 3, 64); });
    expect_broken("shape of k", [](Call& c) { c.v.tensor.shape = {13, 2, 64}; });
    expect_broken("shape of q", [](Call& c) { c.out.tensor.shape = {9, 4, 64}; });
    expect_broken("one head_dim", [](Call& c) {
        c.k = c.v = Tensor(c.at(), c.dtype, {12, 2, 80});
    });
    expect_broken("[heads, tokens_q]", [](Call& c) { c.lse.shape = {10, 4}; });
    expect_broken("same sequences", [&](Call& c) { c.batch.cu_q = cu; });
    expect_broken("at most", [&](Call& c) { c.batch = {cu, cu, 1, 0, 0}; });
    expect_broken("at most", [&](Call& c) { c.batch = {cu, cu, 1, 10, 0}; });
    expect_broken("at most", [&](Call& c) { c.batch = {cu, cu, 1, 0, 12}; });
    expect_broken("negative", [](Call& c) { c.batch.sequences = -1; });
    expect_broken("inside the tensors", [](Call& c) { c.batch = {nullptr, nullptr, 3, 4, 4}; });
    expect_broken("the mask has", [](Call& c) { c.mask.block = 0; });
    expect_broken("the mask has", [](Call& c) { c.mask.window = -1; });
    expect_broken("the mask has", [](Call& c) { c.mask.sinks = -1; });
    expect_broken("scale is positive", [](Call& c) { c.scale = 0; });
    expect_broken("positive and finite", [](Call& c) { c.scale = INFINITY; });
    expect_broken("positive and finite", [](Call& c) { c.scale = NAN; });
    expect_broken("65535 heads", [](Call& c) { c.shapes(1, 1, 65536, 2, 64); });
    expect_broken("65535 sequences", [&](Call& c) { c.batch = {cu, cu, 65536, 1, 1}; });
    expect_broken("less than 2^30 tokens", [](Call& c) { c.shapes(1 << 30, 12, 4, 2, 64); });
}

TEST(FlashProblem, BackwardHasMoreTensors) {
    Call call;
    call.shapes(10, 12, 4, 2, 256);
    EXPECT_NO_THROW(call.forward());
    expect_refused("to 128 backward", [&] { call.backward(); });
    for (ops::HeadRows Call::*rows : {&Call::dout, &Call::dq, &Call::dk, &Call::dv}) {
        Call broken;
        (broken.*rows).tensor.data = nullptr;
        EXPECT_NO_THROW(broken.forward());
        expect_refused("no null pointers", [&] { broken.backward(); });
        Call shorter;
        (shorter.*rows).tensor.shape = {9, (shorter.*rows).heads(), 64};
        EXPECT_NO_THROW(shorter.forward());
        expect_refused("have the shape of", [&] { shorter.backward(); });
    }
}

TEST(FlashProblem, BackwardNeedsItsScratch) {
    const char* needs = "is given flash_backward_scratch_bytes()";
    Call call;
    expect_refused(needs, [&] { call.backward(256); });
    call.ctx.scratch = {static_cast<std::byte*>(nullptr), 256};
    expect_refused(needs, [&] { call.backward(256); });
    std::byte room[256];
    call.ctx.scratch = room;
    EXPECT_NO_THROW(call.backward(256));
    expect_refused(needs, [&] { call.backward(257); });
}

TEST(FlashProblem, MaximaMayBeZeroWhereThereIsNothing) {
    const std::int32_t cu[2] = {};
    Call call;
    call.shapes(10, 0, 4, 2, 64);
    call.batch = {cu, cu, 1, 10, 0};
    EXPECT_NO_THROW(call.forward());
    call.shapes(0, 0, 4, 2, 64);
    call.batch = {cu, cu, 1, 0, 0};
    EXPECT_NO_THROW(call.forward());
    call.shapes(10, 12, 4, 2, 64);
    call.batch = {cu, cu, 0, 0, 0};  // no sequence
    EXPECT_NO_THROW(call.forward());
}

TEST(FlashProblem, TilesAreCountedInAnInt) {
    // 2^30 tiles of 64: 65,535 sequences of up to 2^20 rows, 1 head, are just below it.
    const std::int32_t cu[2] = {};
    Call call;
    for (const int heads : {1, 2}) {
        for (const bool of_keys : {false, true}) {
            call.shapes(1 << 20, 1 << 20, heads, heads, 64);
            call.batch = {cu, cu, 65535, of_keys ? 1 : 1 << 20, of_keys ? 1 << 20 : 1};
            if (heads == 1) {
                EXPECT_NO_THROW(call.forward());
                EXPECT_NO_THROW(call.backward());
            } else {
                EXPECT_THROW(call.forward(), ContractError);
                EXPECT_THROW(call.backward(), ContractError);
            }
        }
    }
}

TEST(FlashProblem, LengthsAreCutToWhatIsThere) {
    Call call;
    const std::int32_t cu_q[] = {0, 4, 99, 3}, cu_k[] = {0, 5, 5, 12};
    call.batch = {cu_q, cu_k, 3, 5, 6};
    const Problem p = call.forward();
    EXPECT_EQ(p.sequence(0).queries, 4);
    EXPECT_EQ(p.sequence(0).keys, 5);
    EXPECT_EQ(p.sequence(1).q, 4);
    EXPECT_EQ(p.sequence(1).queries, 5);  // limited to the announced maximum
    EXPECT_EQ(p.sequence(1).keys, 0);
    EXPECT_EQ(p.sequence(2).queries, 0);
    EXPECT_EQ(p.sequence(2).keys, 6);
    call.batch = {nullptr, nullptr, 2, 5, 6};
    EXPECT_EQ(call.forward().sequence(1).q, 5);
    EXPECT_EQ(call.forward().sequence(1).k, 6);
}

TEST(FlashProblem, AmountIsWhatTheMaskLeaves) {
    Call call;
    call.shapes(12, 12, 4, 2, 64);
    const Amount a = amount_of(call.forward());
    EXPECT_EQ(a.q_bytes, 12u * 4 * 64 * 2);
    EXPECT_EQ(a.k_bytes, 12u * 2 * 64 * 2);
    EXPECT_EQ(a.lse_bytes, 12u * 4 * 4);
    EXPECT_EQ(a.product_flops, 2u * 78 * 4 * 64);
    call.mask = {Kind::causal, 1, 4, 2};  // 1 2 3 4 5 6 6 6 6 6 6 6
    EXPECT_EQ(amount_of(call.forward()).product_flops, 2u * 57 * 4 * 64);
}

}  // namespace
}  // namespace mr::cuda::flash
