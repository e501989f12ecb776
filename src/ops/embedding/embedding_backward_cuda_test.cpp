#include "ops/embedding/embedding_backward_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

class EmbeddingBackwardTest : public GpuTest {
  protected:
    void give_scratch(std::int64_t tokens, std::int64_t dim) {
        const std::size_t bytes = embedding_backward_scratch_bytes(tokens, dim);
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }
    // Whole numbers: their sums are exact in any order.
    std::vector<float> whole(std::int64_t count) {
        std::uniform_int_distribution<int> any(-50, 50);
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& v : values) v = static_cast<float>(any(random_));
        return values;
    }
    // Ids that occur once, ids that occur often, and one that is most of the batch.
    std::vector<std::int32_t> ids_of(std::int64_t tokens, std::int64_t rows, int kind) {
        std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(rows - 1));
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < tokens; ++i) {
            std::int32_t id = any(random_);
            if (kind == 1 && i % 3 != 0) id = static_cast<std::int32_t>(rows / 2);
            if (kind == 2) id = static_cast<std::int32_t>(rows - 1);
            if (kind == 3 && i % 4 == 0) id = i % 8 == 0 ? -1 : static_cast<std::int32_t>(rows);
            if (kind == 4) id %= 9;
            ids.push_back(id);
        }
        return ids;
    }
};

TEST_F(EmbeddingBackwardTest, AddsEveryTokenOnce) {
    struct Case {
        std::int64_t tokens, rows, dim;
    };
    for (const Case& c : {Case{1, 1, 4}, Case{63, 5, 7}, Case{64, 255, 8}, Case{65, 256, 12},
                          Case{1000, 257, 1028}, Case{1025, 40, 30}, Case{5000, 50257, 64},
                          Case{4096, 70000, 16}, Case{3000, 2048, 768}}) {
        for (int kind = 0; kind < 5; ++kind) {
            SCOPED_TRACE(std::to_string(c.tokens) + " tokens, " + std::to_string(c.rows) +
                         " rows of " + std::to_string(c.dim) + ", kind " + std::to_string(kind));
            memory_.reset();
            give_scratch(c.tokens, c.dim);
            const std::vector<std::int32_t> ids = ids_of(c.tokens, c.rows, kind);
            std::vector<float> dx_values = whole(c.tokens * c.dim), want = whole(c.rows * c.dim);
            const Tensor dx = upload(DType::f32, {c.tokens, c.dim}, dx_values);
            const Tensor dtable = upload(DType::f32, {c.rows, c.dim}, want);
            embedding_backward(ctx_, dtable, dx, upload(std::span<const std::int32_t>(ids)));
            for (std::size_t t = 0; t < ids.size(); ++t) {
                if (ids[t] < 0 || ids[t] >= c.rows) continue;
                for (std::int64_t i = 0; i < c.dim; ++i) {
                    want[static_cast<std::size_t>(ids[t] * c.dim + i)] +=
                        dx_values[t * static_cast<std::size_t>(c.dim) +
                                  static_cast<std::size_t>(i)];
                }
            }
            const std::vector<float> got = download(dtable);
            for (std::size_t i = 0; i < got.size(); ++i) {
                ASSERT_EQ(got[i], want[i]) << "row " << i / static_cast<std::size_t>(c.dim);
            }
        }
    }
}

// With numbers whose sum depends on the order: always the same bits, and near the sum in f64.
TEST_F(EmbeddingBackwardTest, HasOneOrder) {
    constexpr std::int64_t kTokens = 6000, kRows = 300, kDim = 64;
    give_scratch(kTokens, kDim);
    const std::vector<std::int32_t> ids = ids_of(kTokens, kRows, 1);
    std::vector<float> values = normal(kTokens * kDim);
    const Tensor dx = upload(DType::f32, {kTokens, kDim}, values);
    const std::int32_t* at = upload(std::span<const std::int32_t>(ids));
    std::vector<std::vector<float>> got;
    for (int i = 0; i < 3; ++i) {
        std::vector<float> zeros(kRows * kDim);
        const Tensor dtable = upload(DType::f32, {kRows, kDim}, zeros);
        embedding_backward(ctx_, dtable, dx, at);
        got.push_back(download(dtable));
    }
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(got[0], got[2]);
    std::vector<double> want(kRows * kDim), size(kRows * kDim);
    for (std::size_t t = 0; t < ids.size(); ++t) {
        for (std::size_t i = 0; i < kDim; ++i) {
            const std::size_t to = static_cast<std::size_t>(ids[t]) * kDim + i;
            want[to] += double{values[t * kDim + i]};
            size[to] += std::abs(double{values[t * kDim + i]});
        }
    }
    // A piece has 64 tokens; then come the pieces.
    for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[0][i], want[i], 0x1p-24 * (64 + kTokens / 64.0) * size[i]);
    }
}

TEST_F(EmbeddingBackwardTest, PositionsAndContract) {
    for (const std::int64_t sequences : {1, 7, 8, 19}) {
        memory_.reset();
        constexpr std::int64_t kSeq = 33, kDim = 70, kContext = 40;
        std::vector<float> values = whole(sequences * kSeq * kDim), want = whole(kContext * kDim);
        const Tensor dx = upload(DType::f32, {sequences * kSeq, kDim}, values);
        const Tensor dtable = upload(DType::f32, {kContext, kDim}, want);
        positions_backward(ctx_, dtable, dx, kSeq);
        for (std::size_t i = 0; i < values.size(); ++i) want[i % (kSeq * kDim)] += values[i];
        EXPECT_EQ(download(dtable), want) << sequences;
        EXPECT_THROW(positions_backward(ctx_, dtable, dx, kContext + 1), ContractError);
    }
    const Tensor table = poisoned(DType::f32, {5, 8}), dx = poisoned(DType::f32, {4, 8});
    const std::int32_t* ids = memory_.array<std::int32_t>(4);
    ctx_.scratch = {};
    EXPECT_THROW(embedding_backward(ctx_, table, dx, ids), ContractError);
    give_scratch(4, 8);
    EXPECT_THROW(embedding_backward(ctx_, table, poisoned(DType::f32, {4, 4}), ids), ContractError);
}

}  // namespace
}  // namespace mr::cuda
