#include "ops/attention/merge/merge_cuda.h"

#include <cmath>
#include <vector>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

using ops::HeadRows;

class GpuMerge : public GpuTest {
  protected:
    // Heads inside rows of `stride` elements; the rest of a row must stay unchanged.
    static HeadRows rows(const Tensor& x, std::int64_t heads, std::int64_t dim) {
        return {Tensor(x.data, x.dtype, {x.dim(0), heads, dim}), x.dim(1)};
    }
};

TEST_F(GpuMerge, IsTheSumOfBothParts) {
    const float none = -std::numeric_limits<float>::infinity();
    for (const auto& [heads, dim] :
         {std::pair<std::int64_t, std::int64_t>{3, 24}, {8, 32}, {40, 128}}) {
        memory_.reset();
        const std::int64_t tokens = 37, stride = heads * dim + 8;
        std::vector<float> a = normal(static_cast<std::size_t>(tokens * stride)), b = a;
        for (float& x : b) x = 1 - x;
        std::vector<float> la = normal(static_cast<std::size_t>(heads * tokens), 4), lb = la;
        for (std::size_t i = 0; i < lb.size(); ++i) lb[i] = la[lb.size() - 1 - i];
        la[0] = none, lb[1] = none, la[2] = lb[2] = none, la[3] = lb[3] = 2, la[4] = 1e4f;
        // A part without weight is not read.
        for (std::int64_t d = 0; d < dim; ++d) {
            a[static_cast<std::size_t>(d)] = NAN;
            b[static_cast<std::size_t>(stride + d)] = NAN;
        }
        const Tensor out = upload(DType::bf16, {tokens, stride}, a);
        const Tensor other = upload(DType::bf16, {tokens, stride}, b);
        const Tensor lse = upload(DType::f32, {heads, tokens}, la);
        const Tensor other_lse = upload(DType::f32, {heads, tokens}, lb);
        merge_attention(ctx_, rows(out, heads, dim), lse, rows(other, heads, dim), other_lse);
        const std::vector<float> got = download(out), got_lse = download(lse);
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t h = 0; h < heads; ++h) {
                const auto l = static_cast<std::size_t>(h * tokens + t);
                const double x = la[l], y = lb[l], top = std::max(x, y);
                const double sum =
                    std::isinf(top) ? top : top + std::log(std::exp(x - top) + std::exp(y - top));
                if (std::isinf(sum)) {
                    ASSERT_EQ(got_lse[l], none);
                } else {
                    ASSERT_NEAR(got_lse[l], sum, 0x1p-22 * (1 + std::abs(sum)));
                }
                for (std::int64_t d = 0; d < dim; ++d) {
                    const auto at = static_cast<std::size_t>(t * stride + h * dim + d);
                    const double p = std::isinf(x) ? 0 : std::exp(x - sum) * double{a[at]};
                    const double q = std::isinf(y) ? 0 : std::exp(y - sum) * double{b[at]};
                    ASSERT_NEAR(got[at], p + q,
                                (0x1p-8 + 0x1p-20) * (std::abs(p) + std::abs(q)) + 1e-30)
                        << t << ' ' << h << ' ' << d;
                }
            }
            for (std::int64_t d = heads * dim; d < stride; ++d) {
                const auto at = static_cast<std::size_t>(t * stride + d);
                ASSERT_EQ(got[at], a[at]);
            }
        }
    }
}

TEST_F(GpuMerge, AddsHeads) {
    const std::int64_t tokens = 5, heads = 3, dim = 16, stride = heads * dim + 16;
    std::vector<float> a = normal(static_cast<std::size_t>(tokens * stride)), b = a;
    for (float& x : b) x = 2 - x * x;
    const Tensor to = upload(DType::bf16, {tokens, stride}, a);
    const Tensor from = upload(DType::bf16, {tokens, stride}, b);
    add_heads(ctx_, rows(to, heads, dim), rows(from, heads, dim));
    const std::vector<float> got = download(to);
    for (std::size_t i = 0; i < got.size(); ++i) {
        const bool inside = static_cast<std::int64_t>(i) % stride < heads * dim;
        ASSERT_EQ(got[i], inside ? bf16_to_f32(f32_to_bf16(a[i] + b[i])) : a[i]) << i;
    }
    EXPECT_THROW(add_heads(ctx_, rows(to, heads, dim), rows(from, heads, 8)), ContractError);
}

}  // namespace
}  // namespace mr::cuda
