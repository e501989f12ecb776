#include "ops/quant/quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "core/mapped_file.h"
#include "core/philox.h"

namespace mr::ops {
namespace {

struct Record {  // as written by tests/formats/make_golden.py
    DType dtype;
    bool packs;
    std::vector<std::byte> blocks;
    std::vector<float> floats;
};

std::vector<Record> read_golden() {
    const MappedFile file(std::string(MR_SOURCE_DIR) + "/tests/formats/golden_quant.bin");
    std::vector<Record> out;
    const std::byte* at = file.bytes().data();
    const std::byte* end = at + file.bytes().size();
    while (at < end) {
        char name[9] = {};
        std::uint32_t fields[3];
        std::memcpy(name, at, 8);
        std::memcpy(fields, at + 8, sizeof fields);
        at += 8 + sizeof fields;
        Record record{dtype_from_name(name).value(), fields[0] == 1, {}, {}};
        record.blocks.assign(at, at + fields[2]);
        at += fields[2];
        record.floats.resize(fields[1]);
        std::memcpy(record.floats.data(), at, fields[1] * sizeof(float));
        at += fields[1] * sizeof(float);
        out.push_back(std::move(record));
    }
    return out;
}

std::vector<float> random_floats(std::int64_t count, float scale, std::uint64_t seed) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = (unit_float(philox(seed, i)[0]) * 2.0f - 1.0f) * scale;
    }
    return out;
}

TEST(Quant, ExpandsAndPacksBitForBitAsLlamaCpp) {
    int expanded = 0, packed = 0;
    for (const Record& record : read_golden()) {
        SCOPED_TRACE(std::string(dtype_name(record.dtype)) +
                     (record.packs ? " packs" : " expands"));
        const auto count = static_cast<std::int64_t>(record.floats.size());
        ASSERT_EQ(record.blocks.size(), dtype_bytes(record.dtype, record.floats.size()));
        if (record.packs) {
            std::vector<std::byte> out(record.blocks.size(), std::byte{0xa5});
            quantize(record.dtype, record.floats.data(), out.data(), count);
            EXPECT_EQ(out, record.blocks);
            ++packed;
        } else {
            std::vector<std::byte> unaligned(record.blocks.size() + 1);
            std::copy(record.blocks.begin(), record.blocks.end(), unaligned.begin() + 1);
            std::vector<float> out(record.floats.size(), NAN);
            dequantize(record.dtype, unaligned.data() + 1, out.data(), count);
            for (std::size_t i = 0; i < out.size(); ++i) {
                ASSERT_EQ(out[i], record.floats[i]) << "element " << i;
            }
            ++expanded;
        }
    }
    EXPECT_EQ(expanded, 10);
    EXPECT_EQ(packed, 4);
}

// The loss of a round trip, from the step of each type: half a step of the grid, plus the rounding
// of the f16 scale over the levels it multiplies.
TEST(Quant, RoundTripStaysWithinHalfAStep) {
    constexpr int kCount = 32 * 64;
    const std::vector<float> x = random_floats(kCount, 3.0f, 5);
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        SCOPED_TRACE(dtype_name(type));
        std::vector<std::byte> packed(dtype_bytes(type, kCount));
        std::vector<float> back(kCount, NAN);
        quantize(type, x.data(), packed.data(), kCount);
        dequantize(type, packed.data(), back.data(), kCount);
        for (int block = 0; block < kCount; block += 32) {
            float largest = 0;
            for (int i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
            for (int i = block; i < block + 32; ++i) {
                float bound = 0;  // f32
                if (type == DType::f16) bound = std::fabs(x[i]) * 0x1p-11f;
                if (type == DType::bf16) bound = std::fabs(x[i]) * 0x1p-8f;
                if (type == DType::q8_0) bound = largest * (0.5f / 127 + 0x1p-11f);
                // -8 to 7: on the side opposite to the extreme, a whole step may be cut off.
                if (type == DType::q4_0) bound = largest * (1.0f / 8 + 0x1p-11f);
                ASSERT_LE(std::fabs(back[i] - x[i]), bound * 1.0001f) << i << ": " << x[i];
            }
        }
    }
}

// Elements half-way between two levels: with the largest magnitude 3, x / -0.375 + 8.5 is whole,
// but 1 / 0.375 is not exact. llama.cpp's result is that of a fused multiply-add.
TEST(Quant, Q4_0RoundsAsAFusedMultiplyAdd) {
    std::vector<float> x(32, 0.0f);
    x[0] = 3.0f;
    x[1] = 1.6875f;
    x[2] = 2.0625f;
    x[3] = 2.8125f;
    std::byte block[18];
    quantize(DType::q4_0, x.data(), block, 32);
    EXPECT_EQ(static_cast<int>(block[2]) & 15, 0);
    EXPECT_EQ(static_cast<int>(block[3]) & 15, 3);  // 4 if the product is rounded first
    EXPECT_EQ(static_cast<int>(block[4]) & 15, 2);
    EXPECT_EQ(static_cast<int>(block[5]) & 15, 0);
    EXPECT_EQ(static_cast<int>(block[6]) & 15, 8);
}

TEST(Quant, NotFiniteInNotFiniteOut) {
    for (const DType type : {DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        for (const float bad :
             {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            std::vector<float> x(64, 1.0f), back(64, 0.0f);
            x[5] = bad;
            std::vector<std::byte> packed(dtype_bytes(type, 64));
            quantize(type, x.data(), packed.data(), 64);
            dequantize(type, packed.data(), back.data(), 64);
            EXPECT_FALSE(std::isfinite(back[5])) << dtype_name(type);
            EXPECT_NEAR(back[40], 1.0f, 0.01f) << dtype_name(type);  // the other block
        }
    }
}

TEST(Quant, ZerosAndSubnormalsGiveZero) {
    for (const DType type : {DType::q8_0, DType::q4_0}) {
        for (const float value : {0.0f, -0.0f, 1e-42f, -1e-42f}) {
            std::vector<float> x(32, value), back(32, NAN);
            x[3] = 0.0f;
            std::vector<std::byte> packed(dtype_bytes(type, 32));
            quantize(type, x.data(), packed.data(), 32);
            dequantize(type, packed.data(), back.data(), 32);
            for (const float y : back) EXPECT_EQ(y, 0.0f) << dtype_name(type);
        }
    }
}

TEST(Quant, ContractIsChecked) {
    float x[32] = {};
    std::byte block[34] = {};
    EXPECT_THROW(quantize(DType::q8_0, x, block, 31), ContractError);
    EXPECT_THROW(dequantize(DType::q8_0, block, x, 31), ContractError);
    EXPECT_THROW(quantize(DType::q6_k, x, block, 0), ContractError);
    EXPECT_THROW(dequantize(DType::i32, block, x, 1), ContractError);
    EXPECT_NO_THROW(dequantize(DType::f32, nullptr, nullptr, 0));
}

// The largest number that a type still holds, and that quantize() agrees.
TEST(Quant, CanHoldIsWhatStaysFinite) {
    struct Case {
        DType type;
        float held, lost;
    };
    const Case cases[] = {{DType::f16, 65519.0f, 65520.0f},
                          {DType::bf16, 3.3895e38f, 3.4028e38f},
                          {DType::q8_0, 65519.0f * 127, 65521.0f * 127},
                          {DType::q4_0, 65519.0f * 8, 65520.0f * 8}};
    for (const Case& c : cases) {
        SCOPED_TRACE(dtype_name(c.type));
        for (const float sign : {1.0f, -1.0f}) {
            EXPECT_TRUE(can_hold(c.type, sign * c.held));
            EXPECT_FALSE(can_hold(c.type, sign * c.lost));
            for (const float x : {sign * c.held, sign * c.lost}) {
                std::vector<float> row(32, 0.0f), back(32);
                row[5] = x;
                std::vector<std::byte> packed(dtype_bytes(c.type, 32));
                quantize(c.type, row.data(), packed.data(), 32);
                dequantize(c.type, packed.data(), back.data(), 32);
                EXPECT_EQ(std::isfinite(back[5]), can_hold(c.type, x)) << x;
            }
        }
        EXPECT_TRUE(can_hold(c.type, std::numeric_limits<float>::infinity()));
        EXPECT_TRUE(can_hold(c.type, std::nanf("")));
    }
    EXPECT_TRUE(can_hold(DType::f32, std::numeric_limits<float>::max()));
}

}  // namespace
}  // namespace mr::ops
