// Shared by the tests of attention on plain tensors on the GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/cuda/testing.h"
#include "ops/attention/flash/bounds.h"
#include "ops/attention/flash/flash_cuda.h"

namespace mr::cuda {

class FlashGpuTest : public GpuTest {
  protected:
    static std::function<float(float)> rounding(DType dtype) {
        return [dtype](float x) {
            return dtype == DType::bf16  ? bf16_to_f32(f32_to_bf16(x))
                   : dtype == DType::f16 ? f16_to_f32(f32_to_f16(x))
                                         : x;
        };
    }
    FlashBatch device_batch(const ops::reference::Problem& p) {
        FlashBatch batch;
        batch.cu_q = upload<std::int32_t>(p.cu_q);
        batch.cu_k = upload<std::int32_t>(p.cu_k);
        batch.sequences = p.sequences();
        for (int i = 0; i < p.sequences(); ++i) {
            batch.max_queries = std::max(batch.max_queries, p.queries(i));
            batch.max_keys = std::max(batch.max_keys, p.keys(i));
        }
        return batch;
    }

    // The score of largest magnitude that any row sees.
    static double largest_score(const ops::reference::Problem& p) {
        double most = 0;
        for (int seq = 0; seq < p.sequences(); ++seq) {
            for (int head = 0; head < p.heads; ++head) {
                for (int i = 0; i < p.queries(seq); ++i) {
                    for (const double s : ops::reference::row_weights(p, seq, i, head).s) {
                        most = std::max(most, std::abs(s));
                    }
                }
            }
        }
        return most;
    }
    // One sequence whose scores are exact in f32, and beyond 1e4: every q and k is a or -a, a whole
    // number with a * a * head_dim / 8 just above (64 numbers: 36 and 10368). Every fifth key
    // equals the query of the first token, from its own on, that sees it, which gives that score;
    // another key is its negative.
    static void make_extreme(ops::reference::Problem& p) {
        ASSERT_TRUE(p.kv_heads == 1 && p.sequences() == 1);
        ASSERT_EQ(p.tokens_q(), p.tokens_k());
        const double a = std::floor(std::sqrt(1e4 * 8 / p.head_dim)) + 1;
        const auto dim = static_cast<std::size_t>(p.head_dim);
        const ops::KeyMask sees(p.mask);
        p.scale = 0.125;
        for (double& q : p.q) q = q < 0 ? -a : a;
        for (double& k : p.k) k = k < 0 ? -a : a;
        for (int j = 0; j < p.tokens_k(); ++j) {
            int seen_by = j;
            while (seen_by < p.tokens_q() && !sees.sees(seen_by, j, p.tokens_k())) ++seen_by;
            if (j % 5 > 1 || seen_by == p.tokens_q()) continue;
            for (std::size_t d = 0; d < dim; ++d) {
                const double q = p.q[p.q_at(0, seen_by, 0) + d];
                p.k[p.k_at(0, j, 0) + d] = j % 5 == 0 ? q : -q;
            }
        }
        ASSERT_EQ(largest_score(p), a * a * p.head_dim / 8);
        ASSERT_GT(largest_score(p), 1e4);
    }

    struct Wanted {
        ops::reference::Result value, bound;
    };
    static Wanted with_bounds(const ops::reference::Problem& p, ops::reference::Result value,
                              DType dtype) {
        const double u = epsilon(dtype);
        // 2^-22: the error bound of the hardware's exponential.
        const ops::reference::Roundoff roundoff{0x1p-22, dtype == DType::f32 ? 0x1p-24 : u, u};
        ops::reference::Result bound = ops::reference::error_bounds(p, value, roundoff);
        return {std::move(value), std::move(bound)};
    }
};

}  // namespace mr::cuda
