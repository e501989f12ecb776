#include "ops/embedding/embedding_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "ops/linear/tile_layout.h"
#include "ops/quant/quant.h"

namespace mr::cuda::embedding_cuda_test {
namespace {

constexpr DType kTypes[] = {DType::f32,  DType::f16,    DType::bf16,  DType::q8_0,
                            DType::q4_0, DType::q8_0x8, DType::q4_0x8};

class EmbeddingTest : public GpuTest {
  protected:
    struct Table {
        Tensor tensor;
        std::vector<float> exact;  // the values of its rows
    };
    Table make_table(DType type, std::int64_t rows, std::int64_t dim) {
        const DType blocks = type == DType::q8_0x8   ? DType::q8_0
                             : type == DType::q4_0x8 ? DType::q4_0
                                                     : type;
        const auto count = static_cast<std::size_t>(rows * dim);
        const std::vector<float> values = normal(count);
        std::vector<std::byte> bytes(dtype_bytes(blocks, count));
        ops::quantize(blocks, values.data(), bytes.data(), rows * dim);
        Table table;
        table.exact.resize(count);
        ops::dequantize(blocks, bytes.data(), table.exact.data(), rows * dim);
        if (ops::is_tiled(type)) {
            std::vector<std::byte> tiles(ops::tile_bytes(type, rows, dim));
            ops::pack_tiles(type, bytes.data(), rows, dim, tiles.data());
            bytes = std::move(tiles);
        }
        table.tensor = {upload(std::span<const std::byte>(bytes)), type, {rows, dim}};
        return table;
    }
    ops::DeviceBatch batch_of(const std::vector<std::int32_t>& ids,
                              const std::vector<std::int32_t>& positions) {
        ops::DeviceBatch batch;
        batch.tokens = static_cast<int>(ids.size());
        batch.ids = upload(std::span<const std::int32_t>(ids));
        batch.positions = upload(std::span<const std::int32_t>(positions));
        return batch;
    }
};

TEST_F(EmbeddingTest, RowsAreTheTablesForEveryType) {
    const std::vector<std::int32_t> ids{0, 49, 7, 7, 31, 1, 48}, positions{0, 1, 2, 9, 4, 5, 3};
    for (const DType type : kTypes) {
        for (const std::int64_t dim : {32, 64, 96, 160, 288, 2560, 4096}) {
            for (const DType position_type : {DType::f32, DType::bf16, DType::q8_0}) {
                memory_.reset();
                const Table table = make_table(type, 50, dim);
                const Table places = make_table(position_type, 10, dim);
                const ops::DeviceBatch batch = batch_of(ids, positions);
                const auto tokens = static_cast<std::int64_t>(ids.size());
                const Tensor out = poisoned(DType::f32, {tokens, dim});
                const Tensor added = poisoned(DType::f32, {tokens, dim});
                embedding(ctx_, out, table.tensor, {}, batch);
                embedding(ctx_, added, table.tensor, places.tensor, batch);
                const std::vector<float> got = download(out), got_added = download(added);
                for (std::size_t t = 0; t < ids.size(); ++t) {
                    for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
                        const std::size_t width = static_cast<std::size_t>(dim);
                        const float want =
                            table.exact[static_cast<std::size_t>(ids[t]) * width + d];
                        const float place =
                            places.exact[static_cast<std::size_t>(positions[t]) * width + d];
                        ASSERT_EQ(got[t * width + d], want)
                            << dtype_name(type) << " dim " << dim << " token " << t << " at " << d;
                        ASSERT_EQ(got_added[t * width + d], want + place) << dtype_name(type);
                    }
                }
            }
        }
    }
}

TEST_F(EmbeddingTest, OddRowsOfFloats) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        for (const std::int64_t dim : {1, 5, 7, 255, 1030}) {
            memory_.reset();
            const Table table = make_table(type, 9, dim), places = make_table(type, 4, dim);
            const ops::DeviceBatch batch = batch_of({8, 3, 0}, {3, 0, 1});
            const Tensor out = poisoned(DType::f32, {3, dim});
            embedding(ctx_, out, table.tensor, places.tensor, batch);
            const std::vector<float> got = download(out);
            const std::int64_t ids[] = {8, 3, 0}, positions[] = {3, 0, 1};
            for (std::int64_t t = 0; t < 3; ++t) {
                for (std::int64_t d = 0; d < dim; ++d) {
                    ASSERT_EQ(got[static_cast<std::size_t>(t * dim + d)],
                              table.exact[static_cast<std::size_t>(ids[t] * dim + d)] +
                                  places.exact[static_cast<std::size_t>(positions[t] * dim + d)]);
                }
            }
        }
    }
}

TEST_F(EmbeddingTest, WhatIsNotInTheTableIsNan) {
    const Table table = make_table(DType::q4_0x8, 17, 160), places = make_table(DType::f32, 4, 160);
    const ops::DeviceBatch batch = batch_of({16, 17, -1, 3, 3}, {0, 0, 0, 4, -1});
    const Tensor out = poisoned(DType::f32, {5, 160});
    embedding(ctx_, out, table.tensor, places.tensor, batch);
    const std::vector<float> got = download(out);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(std::isnan(got[i]), i >= 160) << i;
}

TEST_F(EmbeddingTest, LedgerAndContract) {
    const Table table = make_table(DType::q8_0, 10, 64);
    const ops::DeviceBatch batch = batch_of({1, 2, 1}, {0, 1, 2});
    const Tensor out = poisoned(DType::f32, {3, 64});
    embedding(ctx_, out, table.tensor, {}, batch);
    const OpRecord& record = ledger_.op(OpKind::embedding);
    EXPECT_EQ(record.bytes_read, 3u * (4 + 2 * 34));
    EXPECT_EQ(record.bytes_written, 3u * 256);
    EXPECT_EQ(record.flops, 3u * 64);
    EXPECT_THROW(embedding(ctx_, poisoned(DType::f32, {3, 32}), table.tensor, {}, batch),
                 ContractError);
    EXPECT_THROW(embedding(ctx_, poisoned(DType::f32, {2, 64}), table.tensor, {}, batch),
                 ContractError);
    Tensor wrong = table.tensor;
    wrong.dtype = DType::i8;
    EXPECT_THROW(embedding(ctx_, out, wrong, {}, batch), ContractError);
}

TEST_F(EmbeddingTest, GatheredRowsAreCopies) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        for (const std::int64_t cols : {1, 7, 64, 172, 255, 2560, 4098}) {
            memory_.reset();
            std::vector<float> values = normal(static_cast<std::size_t>(33 * cols));
            const Tensor x = upload(type, {33, cols}, values);
            const std::vector<std::int32_t> rows{32, 0, 5, 5, 33, 17, -1};
            const Tensor out = poisoned(type, {7, cols});
            gather_rows(ctx_, out, x, upload(std::span<const std::int32_t>(rows)), 7);
            const std::vector<float> got = download(out);
            for (std::size_t i = 0; i < got.size(); ++i) {
                const std::size_t width = static_cast<std::size_t>(cols);
                const std::int32_t row = rows[i / width];
                if (row < 0 || row > 32) {
                    ASSERT_TRUE(std::isnan(got[i]));
                } else {
                    ASSERT_EQ(got[i], values[static_cast<std::size_t>(row) * width + i % width]);
                }
            }
        }
    }
    std::vector<float> values = normal(64);
    const Tensor x = upload(DType::f32, {8, 8}, values);
    const std::int32_t* rows = memory_.array<std::int32_t>(4);
    EXPECT_THROW(gather_rows(ctx_, poisoned(DType::f16, {4, 8}), x, rows, 4), ContractError);
    EXPECT_THROW(gather_rows(ctx_, poisoned(DType::f32, {3, 8}), x, rows, 4), ContractError);
}

}  // namespace
}  // namespace mr::cuda::embedding_cuda_test
