// What attention over pages on the GPU refuses: the part that needs no GPU.
#include "ops/attention/paged/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace mr::cuda::attn {
namespace {

using ops::AttentionMask;

struct Call {
    Context ctx;
    std::vector<std::byte> memory = std::vector<std::byte>(32);
    Tensor q, out;
    ops::PagedKv kv;
    ops::DeviceBatch batch;
    AttentionMask mask;
    float scale = 1;

    Call() {
        ctx.cuda = reinterpret_cast<Stream*>(at());  // never used
        shapes(10, 4, 2, 64);
        kv.keys = kv.values = Tensor(at(), DType::bf16, {6, 2, 32, 64});
        batch.tokens = 10, batch.sequences = 2, batch.max_count = 5;
        batch.max_keys = 100, batch.max_pages = 4;
        batch.first = batch.positions = batch.pages = static_cast<const std::int32_t*>(at());
    }
    void* at(std::size_t offset = 0) {
        const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16;
        return reinterpret_cast<void*>(begin + offset);  // only addresses matter
    }
    void shapes(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim) {
        q = out = Tensor(at(), DType::bf16, {tokens, heads, dim});
        kv.keys = kv.values = Tensor(at(), DType::bf16, {6, kv_heads, 32, dim});
    }
    Tensor q_sinks;

    void check() { check_call(ctx, out, q, kv, batch, mask, scale, q_sinks); }
};

void expect_broken(const char* contract, const std::function<void(Call&)>& damage) {
    Call call;
    damage(call);
    try {
        call.check();
        ADD_FAILURE() << "accepted: " << contract;
    } catch (const ContractError& error) {
        EXPECT_NE(std::string(error.what()).find(contract), std::string::npos) << error.what();
    }
}

TEST(AttentionProblem, BrokenContractsAreNamed) {
    EXPECT_NO_THROW(Call().check());
    expect_broken("a stream", [](Call& c) { c.ctx.cuda = nullptr; });
    expect_broken("q and out are f32, f16 or bf16", [](Call& c) { c.q.dtype = DType::i32; });
    expect_broken("alike", [](Call& c) { c.out.dtype = DType::f16; });
    expect_broken("alike", [](Call& c) { c.out.shape = {9, 4, 64}; });
    expect_broken("keys and values are", [](Call& c) { c.kv.values.dtype = DType::f16; });
    expect_broken("a page holds 32", [](Call& c) {
        c.kv.keys.shape = c.kv.values.shape = {6, 2, 16, 64};
    });
    expect_broken("head_dim of the cache", [](Call& c) { c.q.shape = c.out.shape = {10, 4, 32}; });
    expect_broken("multiple of 8", [](Call& c) { c.shapes(10, 4, 2, 68); });
    expect_broken("multiple of 8", [](Call& c) { c.shapes(10, 4, 2, 264); });
    expect_broken("multiple of kv_heads", [](Call& c) { c.shapes(10, 4, 3, 64); });
    for (Tensor Call::*tensor : {&Call::q, &Call::out}) {
        expect_broken("have memory", [&](Call& c) { (c.*tensor).data = nullptr; });
        expect_broken("a multiple of 16 bytes", [&](Call& c) { (c.*tensor).data = c.at(8); });
    }
    expect_broken("have memory", [](Call& c) { c.kv.values.data = nullptr; });
    expect_broken("a multiple of 16 bytes", [](Call& c) { c.kv.keys.data = c.at(2); });
    expect_broken("rows of q", [](Call& c) { c.batch.tokens = 11; });
    expect_broken("rows of q", [](Call& c) { c.batch.max_count = 0; });
    expect_broken("in device memory", [](Call& c) { c.batch.first = nullptr; });
    expect_broken("in device memory", [](Call& c) { c.batch.positions = nullptr; });
    expect_broken("in device memory", [](Call& c) { c.batch.pages = nullptr; });
    expect_broken("room for max_keys", [](Call& c) { c.batch.max_pages = 2; });
    for (const int entries : {0, 3, 6, -4}) {
        expect_broken("a power of two", [&](Call& c) { c.batch.max_pages = entries; });
    }
    expect_broken("room for max_keys", [](Call& c) { c.batch.max_keys = 0; });
    expect_broken("the mask has", [](Call& c) { c.mask.block = 0; });
    expect_broken("the mask has", [](Call& c) { c.mask.window = -1; });
    expect_broken("the mask has", [](Call& c) { c.mask.sinks = -1; });
    for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
        expect_broken("positive and finite", [&](Call& c) { c.scale = scale; });
    }
}

// A window needs entries for what its rows see, and no more for longer sequences.
TEST(AttentionProblem, SinksAndStreamsAreChecked) {
    expect_broken("what asks the sinks is as q",
                  [](Call& c) { c.q_sinks = Tensor(c.at(), DType::f16, c.q.shape); });
    const auto stream = [](Call& c) {
        c.batch.streams = c.batch.fronts = c.batch.first;
        c.batch.max_fronts = 1;
        c.batch.max_sinks = 32;
        c.batch.max_window = 100;
        c.q_sinks = c.q;
    };
    Call call;
    stream(call);
    EXPECT_NO_THROW(call.check());
    expect_broken("the pages of sinks are those of all sinks", [&](Call& c) {
        stream(c);
        c.batch.max_sinks = 33;
    });
    expect_broken("streams have a window", [&](Call& c) {
        stream(c);
        c.batch.max_window = 0;
    });
    // With separate pages for sinks, the table is left to the window.
    Call apart;
    apart.mask = {AttentionMask::Kind::causal, 1, 20, 4};
    apart.batch.max_keys = 100000;
    EXPECT_THROW(apart.check(), ContractError);
    apart.batch.fronts = apart.batch.first;
    apart.batch.max_fronts = 1;
    EXPECT_NO_THROW(apart.check());
}

TEST(AttentionProblem, AWindowGoesRoundInAShortTable) {
    const auto ring = [](int window, int rows, int entries) {
        Call call;
        call.mask.window = window;
        call.batch.max_count = rows;
        call.batch.max_keys = 1 << 20;
        call.batch.max_pages = entries;
        return call;
    };
    EXPECT_NO_THROW(ring(33, 1, 2).check());
    EXPECT_NO_THROW(ring(97, 1, 4).check());
    EXPECT_NO_THROW(ring(93, 5, 4).check());
    EXPECT_NO_THROW(ring(98, 1, 8).check());
    EXPECT_THROW(ring(98, 1, 4).check(), ContractError);  // the last key of five pages
    EXPECT_THROW(ring(94, 5, 4).check(), ContractError);
    Call sinks = ring(33, 1, 2);  // a sink stays, although its entry holds another page
    sinks.mask.sinks = 1;
    EXPECT_THROW(sinks.check(), ContractError);
}

// Numbers that kernels count in ints, just inside and just outside the limits.
TEST(AttentionProblem, NumbersThatAreTooLargeAreRefused) {
    expect_broken("65535 heads", [](Call& c) { c.shapes(10, 65536, 2, 64); });
    expect_broken("65535 heads", [](Call& c) { c.shapes(10, (1ll << 32) + 2, 2, 64); });
    expect_broken("less than 2^30 rows", [](Call& c) { c.shapes(1 << 30, 4, 2, 64); });
    expect_broken("less than 2^30 keys", [](Call& c) {
        c.batch.max_keys = 1 << 30;
        c.batch.max_pages = 1 << 25;
    });
    Call keys;
    keys.batch.max_keys = (1 << 30) - 1;
    keys.batch.max_pages = 1 << 25;
    EXPECT_NO_THROW(keys.check());
    const char* rows = "less than 2^30, and rows * heads less than 2^31";
    expect_broken(rows, [](Call& c) { c.batch.max_count = 1 << 29; });  // times a group of two
    Call count;
    count.batch.max_count = (1 << 29) - 1;  // there are only 10 rows
    EXPECT_NO_THROW(count.check());
    const auto many = [](Call& c, std::int64_t heads) {
        c.shapes(1 << 20, heads, heads, 64);
        c.batch.tokens = 1 << 20;
        c.batch.max_count = 1 << 19;
    };
    expect_broken(rows, [&](Call& c) { many(c, 2048); });
    Call fewer;
    many(fewer, 2047);
    EXPECT_NO_THROW(fewer.check());
}

}  // namespace
}  // namespace mr::cuda::attn
