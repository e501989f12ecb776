#include "ops/embedding/embedding_backward.h"

#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

// A row's gradients are added in the order of tokens: the same additions, so the same bits.
TEST(EmbeddingBackward, AddsInOrderWhateverTheThreads) {
    for (const auto& [tokens, dim] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 5}, {200, 48}, {1500, 67}}) {
        const std::int64_t rows = 11;
        Floats dx = Floats::normal({tokens, dim}, 1), start = Floats::normal({rows, dim}, 2);
        std::vector<std::int32_t> ids;
        for (std::int64_t t = 0; t < tokens; ++t) {
            ids.push_back(static_cast<std::int32_t>(t * t * 7 % 10));  // the last row never comes
        }
        std::vector<float> want = start.values;
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t i = 0; i < dim; ++i) {
                const std::int64_t row = ids[static_cast<std::size_t>(t)];
                want[static_cast<std::size_t>(row * dim + i)] += dx[t * dim + i];
            }
        }
        for (const int threads : {1, 2, 3}) {
            Floats dtable = start;
            Bench bench(threads);
            embedding_backward(bench, dtable, dx, ids);
            EXPECT_TRUE(same_bits(dtable.values, want));
        }
    }
}

TEST(EmbeddingBackward, LedgerAndContract) {
    Floats dtable({10, 6}, 0), dx({3, 6}, 1), narrow({3, 5}, 1);
    const std::vector<std::int32_t> ids{1, 9, 1}, wild{10, 0, 0}, negative{0, -1, 0};
    Bench bench;
    embedding_backward(bench, dtable, dx, ids);
    expect_record(bench.ledger.op(OpKind::embedding), 1, 2 * 72 + 12, 72, 18);
    EXPECT_EQ(dtable[6], 2);
    EXPECT_EQ(dtable[9 * 6 + 5], 1);
    EXPECT_THROW(embedding_backward(bench, dtable, dx, wild), ContractError);
    EXPECT_THROW(embedding_backward(bench, dtable, dx, negative), ContractError);
    EXPECT_THROW(embedding_backward(bench, dtable, narrow, ids), ContractError);
}

}  // namespace
}  // namespace mr::ops
