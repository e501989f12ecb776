#include "ops/embedding/embedding_backward.h"

#include "ops/simd/slopes.h"
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
            ids.push_back(static_cast<std::int32_t>(t * t * 7 % 10));  // the last row never occurs
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

// For a loss that is the sum of squares of x = table[ids] + positions, with repeated ids.
TEST(EmbeddingBackward, GradientIsTheSlope) {
    const std::int64_t dim = 3;
    const std::vector<std::int32_t> ids{2, 0, 2, 2, 1, 0}, places{0, 1, 2, 0, 1, 2};
    const auto tokens = static_cast<std::int64_t>(ids.size());
    Floats table = Floats::normal({4, dim}, 1), positions = Floats::normal({3, dim}, 2);
    auto exact_table = widened(table.values), exact_positions = widened(positions.values);
    const auto x = [&](std::int64_t t, std::int64_t i) {
        const auto at = static_cast<std::size_t>(t);
        return exact_table[static_cast<std::size_t>(ids[at] * dim + i)] +
               exact_positions[static_cast<std::size_t>(places[at] * dim + i)];
    };
    const auto loss = [&] {
        double sum = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t i = 0; i < dim; ++i) sum += x(t, i) * x(t, i);
        }
        return sum;
    };
    Floats dx({tokens, dim}), dtable({4, dim}, 0), dpositions({3, dim}, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < dim; ++i) dx[t * dim + i] = static_cast<float>(2 * x(t, i));
    }
    Bench bench;
    embedding_backward(bench, dtable, dx, ids);
    embedding_backward(bench, dpositions, dx, places);
    // At most three terms below 16, each rounded to f32 and added in f32.
    const double bound = 6 * 16 * 0x1p-24;
    for (std::int64_t i = 0; i < dtable.size(); ++i) {
        EXPECT_NEAR(dtable[i], slope(exact_table[static_cast<std::size_t>(i)], loss), bound);
    }
    for (std::int64_t i = 0; i < dpositions.size(); ++i) {
        EXPECT_NEAR(dpositions[i], slope(exact_positions[static_cast<std::size_t>(i)], loss),
                    bound);
    }
    EXPECT_EQ(dtable[3 * dim], 0);  // a row that never occurs
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
