#include "core/dtype.h"

#include <gtest/gtest.h>

#include <set>

#include "core/tensor.h"

namespace mr {
namespace {

TEST(DType, NamesGoThereAndBack) {
    std::set<std::string> names;
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
        const auto type = static_cast<DType>(i);
        const std::string name = dtype_name(type);
        EXPECT_NE(name, "?");
        EXPECT_TRUE(names.insert(name).second) << name << " twice";
        EXPECT_EQ(dtype_from_name(name), type);
    }
    EXPECT_EQ(dtype_from_name("q8_0"), DType::q8_0);
    for (const char* wrong : {"", "F32", "q8", "q8_0 ", "?"}) EXPECT_FALSE(dtype_from_name(wrong));
}

TEST(DType, BlocksAreThoseOfGguf) {
    struct Row {
        DType type;
        int block, bytes;
    };
    // 2 bytes per scale; 32 elements of 8, 4 or 5 bits; k-quants 256 elements with their
    // sub-scales.
    for (const Row& row : {Row{DType::q8_0, 32, 2 + 32},
                           {DType::q4_0, 32, 2 + 16},
                           {DType::q4_1, 32, 4 + 16},
                           {DType::q5_0, 32, 2 + 4 + 16},
                           {DType::q5_1, 32, 4 + 4 + 16},
                           {DType::q4_k, 256, 4 + 12 + 128},
                           {DType::q5_k, 256, 4 + 12 + 32 + 128},
                           {DType::q6_k, 256, 128 + 64 + 16 + 2}}) {
        EXPECT_TRUE(is_quantised(row.type));
        EXPECT_EQ(dtype_info(row.type).block, row.block);
        EXPECT_EQ(dtype_bytes(row.type, 1024),
                  1024u / static_cast<unsigned>(row.block) * static_cast<unsigned>(row.bytes));
    }
    EXPECT_FALSE(is_quantised(DType::bf16));
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) EXPECT_TRUE(is_float(type));
    for (const DType type : {DType::f64, DType::i32, DType::q8_0, DType::q4_0x8}) {
        EXPECT_FALSE(is_float(type));
    }
    EXPECT_EQ(dtype_bytes(DType::bf16, 7), 14u);
    EXPECT_EQ(dtype_bytes(DType::f64, 3), 24u);
}

TEST(Tensor, RowsOfQuantisedBlocks) {
    std::byte data[4 * 68] = {};
    const Tensor w(data, DType::q8_0, {4, 64});
    EXPECT_EQ(w.rows(), 4);
    EXPECT_EQ(w.cols(), 64);
    EXPECT_EQ(w.row_bytes(), 68u);
    EXPECT_EQ(w.bytes(), sizeof data);
    EXPECT_EQ(w.row<std::byte>(3), data + 204);
    const Tensor part = w.slice_rows(1, 2);
    EXPECT_EQ(part.data, data + 68);
    EXPECT_EQ(part.shape, (Shape{2, 64}));
    EXPECT_THROW(w.slice_rows(3, 2), ContractError);
    EXPECT_THROW(w.f32(), ContractError);
    EXPECT_FALSE(Tensor{});
}

TEST(Shape, CountsAndPrints) {
    EXPECT_EQ((Shape{2, 3, 4}).count(), 24);
    EXPECT_EQ(Shape{}.count(), 0);
    EXPECT_EQ((Shape{5, 0}).count(), 0);
    EXPECT_EQ((Shape{32000, 4096}).str(), "[32000, 4096]");
    EXPECT_EQ(Shape{}.str(), "[]");
    EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
    EXPECT_THROW((Shape{1, 2, 3, 4, 5}), ContractError);
}

}  // namespace
}  // namespace mr
