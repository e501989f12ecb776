#include "core/arena.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace mr {
namespace {

TEST(Arena, HandsOutAlignedPiecesThatDoNotOverlap) {
    Arena arena("test", 1000);
    EXPECT_EQ(arena.size(), 1024u);
    auto* a = static_cast<char*>(arena.alloc(1));
    auto* b = static_cast<char*>(arena.alloc(64));
    auto* c = static_cast<char*>(arena.alloc(65));
    auto* d = static_cast<char*>(arena.alloc(1));
    for (char* p : {a, b, c, d}) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    EXPECT_EQ(b - a, 64);
    EXPECT_EQ(c - b, 64);
    EXPECT_EQ(d - c, 128);
    EXPECT_EQ(arena.used(), 320u);
    for (std::size_t i = 0; i < arena.size(); ++i) EXPECT_EQ(a[i], 0);  // comes as zeros
}

TEST(Arena, WhatThePlanAddsUpIsWhatItTakes) {
    const Shape shape{3, 40};
    std::size_t bytes = 0;
    for (DType dtype : {DType::f32, DType::f16, DType::i32})
        bytes += Arena::tensor_bytes(dtype, shape);
    Arena arena("test", bytes);
    for (DType dtype : {DType::f32, DType::f16, DType::i32}) {
        const Tensor tensor = arena.tensor(dtype, shape);
        EXPECT_EQ(tensor.shape, shape);
        EXPECT_EQ(tensor.dtype, dtype);
    }
    EXPECT_EQ(arena.used(), arena.size());
    EXPECT_THROW(arena.alloc(1), ContractError);
    arena.reset();
    EXPECT_NO_THROW(arena.alloc(arena.size()));
    EXPECT_THROW(arena.alloc(1), ContractError);
}

TEST(Arena, MovesAndEmpties) {
    Arena none;
    EXPECT_THROW(none.alloc(1), ContractError);
    Arena zero("nothing", 0);
    EXPECT_EQ(zero.size(), 0u);
    Arena first("first", 128);
    void* p = first.alloc(64);
    Arena second = std::move(first);
    EXPECT_EQ(second.used(), 64u);
    EXPECT_EQ(static_cast<char*>(second.alloc(64)) - static_cast<char*>(p), 64);
    none = std::move(second);
    EXPECT_EQ(none.size(), 128u);
}

TEST(Arena, TooLargeIsADeviceError) {
    try {
        Arena arena("KV cache", std::size_t{1} << 60);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_EQ(error.info().field, "KV cache");
    }
}

TEST(MemoryPlan, SaysWhatDoesNotFit) {
    MemoryPlan plan;
    plan.add("weights", 3u << 20, true);
    plan.add("KV cache", 1u << 20);
    EXPECT_EQ(plan.total(), 4u << 20);
    EXPECT_NO_THROW(plan.require(4u << 20, "x"));
    try {
        plan.require((4u << 20) - 1, "use a smaller --ctx");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        const std::string text = error.what();
        for (const char* part : {"weights 3.00 MiB", "KV cache 1.00 MiB", "4.00 MiB", "--ctx"}) {
            EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
        }
    }
}

TEST(FormatBytes, AsPeopleRead) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(1150000000), "1.07 GiB");
    EXPECT_EQ(format_bytes(std::uint64_t{5} << 50), "5120.00 TiB");
}

}  // namespace
}  // namespace mr
