#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {

// Keys scored together. A tile starts at a multiple of this inside a page, so that tile boundaries
// depend on the sequence alone.
inline constexpr int kTileKeys = 64;
inline constexpr int kBlockRows = 64;  // most query rows (token, head) per task

// One tile of keys against a block of query rows; the kernel updates their running softmax.
struct AttentionTile {
    int rows = 0;
    int head_dim = 0;
    int stride = 0;                // of q and out, in floats: head_dim padded with zeros
    const float* q = nullptr;      // [rows, stride], already multiplied by the scale
    const void* keys = nullptr;    // [kTileKeys, head_dim], f32 or f16
    std::int64_t key_stride = 0;   // in elements, from one key to the next
    const void* values = nullptr;  // as keys
    std::int64_t value_stride = 0;
    const std::int32_t* lo = nullptr;  // [rows] row r sees keys [lo[r], hi[r]) of the tile
    const std::int32_t* hi = nullptr;
    float* max = nullptr;  // [rows] largest score so far
    float* sum = nullptr;  // [rows] sum of exp(score - max) so far
    float* out = nullptr;  // [rows, stride] sum of exp(score - max) * value so far
};

MR_KERNEL(void, attention_tile_f32, (const AttentionTile& tile))
MR_KERNEL(void, attention_tile_f16, (const AttentionTile& tile))

}  // namespace mr::ops
