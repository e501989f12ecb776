#include "ops/rope/rope_kernels.h"

namespace mr::ops::MR_ISA {

// Plain loops: the compiler vectorises them for its path, and every path gives the same bits.
void rope_token(float* x, const float* __restrict cos_sin, std::int64_t heads,
                std::int64_t head_dim, std::int64_t pairs, bool interleaved, float direction) {
    for (std::int64_t h = 0; h < heads; ++h) {
        if (interleaved) {
            float* __restrict head = x + h * head_dim;
            for (std::int64_t i = 0; i < pairs; ++i) {
                const float a = head[2 * i], b = head[2 * i + 1];
                const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1] * direction;
                head[2 * i] = a * c - b * s;
                head[2 * i + 1] = a * s + b * c;
            }
        } else {
            float* __restrict low = x + h * head_dim;
            float* __restrict high = low + pairs;
            for (std::int64_t i = 0; i < pairs; ++i) {
                const float a = low[i], b = high[i];
                const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1] * direction;
                low[i] = a * c - b * s;
                high[i] = a * s + b * c;
            }
        }
    }
}

}  // namespace mr::ops::MR_ISA
