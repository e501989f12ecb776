#include "ops/embedding/embedding.h"

#include "ops/quant/quant.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};

// [vocab, dim] at an odd address, as may occur in a file.
struct Table {
    Table(DType dtype, std::int64_t vocab, std::int64_t dim, unsigned seed)
        : bytes(dtype_bytes(dtype, static_cast<std::size_t>(vocab * dim)) + 1) {
        Floats values = Floats::normal({vocab, dim}, seed);
        quantize(dtype, values.values.data(), bytes.data() + 1, vocab * dim);
        tensor = {bytes.data() + 1, dtype, {vocab, dim}};
        exact.resize(values.values.size());
        dequantize(dtype, bytes.data() + 1, exact.data(), vocab * dim);
    }
    std::vector<std::byte> bytes;
    std::vector<float> exact;
    Tensor tensor;
};

TEST(Embedding, RowsAreTheTablesForEveryType) {
    for (DType dtype : kTypes) {
        for (std::int64_t dim : {32, 96, 288, 320}) {
            SCOPED_TRACE(dtype_name(dtype));
            Table table(dtype, 50, dim, 4);
            const std::vector<std::int32_t> ids{0, 49, 7, 7, 31, 1};
            const auto tokens = static_cast<std::int64_t>(ids.size());
            for (int threads : {1, 3}) {
                Floats out({tokens, dim});
                Bench bench(threads);
                embedding(bench, out, table.tensor, ids);
                Floats added = Floats::normal({tokens, dim}, 5);
                const Floats before = added;
                embedding(bench, added, table.tensor, ids, true);
                for (std::int64_t t = 0; t < tokens; ++t) {
                    for (std::int64_t d = 0; d < dim; ++d) {
                        const float want = table.exact[static_cast<std::size_t>(
                            ids[static_cast<std::size_t>(t)] * dim + d)];
                        ASSERT_EQ(out[t * dim + d], want);
                        ASSERT_EQ(added[t * dim + d], before[t * dim + d] + want);
                    }
                }
            }
        }
    }
}

TEST(Embedding, OddRowsOfFloats) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        Table table(dtype, 9, 5, 1);
        const std::vector<std::int32_t> ids{8, 3};
        Floats out({2, 5});
        Bench bench;
        embedding(bench, out, table.tensor, ids);
        for (std::int64_t d = 0; d < 5; ++d) {
            EXPECT_EQ(out[d], table.exact[static_cast<std::size_t>(40 + d)]);
            EXPECT_EQ(out[5 + d], table.exact[static_cast<std::size_t>(15 + d)]);
        }
    }
}

TEST(Embedding, LedgerAndContract) {
    Table table(DType::q8_0, 10, 64, 1);
    const std::vector<std::int32_t> ids{1, 2, 1}, wild{10, 0, 0}, negative{0, -1, 0};
    Floats out({3, 64}, 0), narrow({3, 32}, 0);
    Bench bench;
    embedding(bench, out, table.tensor, ids);
    expect_record(bench.ledger.op(OpKind::embedding), 1, 3 * 2 * 34, 3 * 256, 3 * 64);
    embedding(bench, out, table.tensor, ids, true);
    expect_record(bench.ledger.op(OpKind::embedding), 2, 2 * 204 + 768, 2 * 768, 192 + 384);
    EXPECT_THROW(embedding(bench, out, table.tensor, wild), ContractError);
    EXPECT_THROW(embedding(bench, out, table.tensor, negative), ContractError);
    EXPECT_THROW(embedding(bench, narrow, table.tensor, ids), ContractError);
    Tensor odd = table.tensor;
    odd.dtype = DType::i8;
    EXPECT_THROW(embedding(bench, out, odd, ids), ContractError);
}

}  // namespace
}  // namespace mr::ops
