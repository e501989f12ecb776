#pragma once

#include <cstdint>

#include "ops/attention/paged/attention_kernels.h"
#include "ops/simd/dispatch.h"

namespace mr::ops {

// One tile of keys against a block of query rows, in the backward. All f32; strides in floats.
struct FlashBackwardTile {
    int rows = 0;  // at most kBlockRows
    int head_dim = 0;
    int stride = 0;                    // of q, dout and dq: head_dim padded with zeros
    const float* q = nullptr;          // [rows, stride], already multiplied by the scale
    const float* dout = nullptr;       // [rows, stride]
    float* dq = nullptr;               // [rows, stride] added to: dS · K, without the scale
    const float* lse = nullptr;        // [rows], finite if the row sees a key
    const float* delta = nullptr;      // [rows] dout · out
    const std::int32_t* lo = nullptr;  // [rows] row r sees keys [lo[r], hi[r]) of the tile
    const std::int32_t* hi = nullptr;
    const float* keys = nullptr;  // [kTileKeys, head_dim]
    std::int64_t key_stride = 0;
    const float* values = nullptr;
    std::int64_t value_stride = 0;
    float* dk = nullptr;  // [kTileKeys, head_dim] added to
    std::int64_t dk_stride = 0;
    float* dv = nullptr;
    std::int64_t dv_stride = 0;
};

MR_KERNEL(void, flash_backward_tile, (const FlashBackwardTile& tile))

}  // namespace mr::ops
