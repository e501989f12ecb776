// What the tests of attention on plain tensors on the GPU share.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "core/cuda/testing.h"
#include "ops/attention/flash_bounds.h"
#include "ops/attention/flash_cuda.h"

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

    struct Wanted {
        ops::reference::Result value, bound;
    };
    static Wanted with_bounds(const ops::reference::Problem& p, ops::reference::Result value,
                              DType dtype) {
        const double u = epsilon(dtype);
        // 2^-22: what the exponential of the hardware may be off.
        const ops::reference::Roundoff roundoff{0x1p-22, dtype == DType::f32 ? 0x1p-24 : u, u};
        ops::reference::Result bound = ops::reference::error_bounds(p, value, roundoff);
        return {std::move(value), std::move(bound)};
    }
};

}  // namespace mr::cuda
