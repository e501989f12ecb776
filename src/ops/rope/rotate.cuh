// Rotating a pair, and the place of a token's keys and values: for every kernel that finishes QKV.
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"

namespace mr::cuda {

// (a, b) rotated; t = (cos, sin) of the pair. No product is fused, as on the CPU.
__device__ __forceinline__ void rotate_pair(float& a, float& b, float2 t) {
    const float rotated = __fsub_rn(__fmul_rn(a, t.x), __fmul_rn(b, t.y));
    b = __fadd_rn(__fmul_rn(a, t.y), __fmul_rn(b, t.x));
    a = rotated;
}

// The pages of one layer and the batch's page tables, as kernel arguments.
struct KvPlace {
    void* keys;
    void* values;
    DType type;
    int kv_heads, page_tokens, head_dim;
    const std::int32_t* positions;
    const std::int32_t* sequence;
    const std::int32_t* pages;
    int max_pages;

    // The index of the first element of `head` at the token's position, in keys and in values;
    // negative if the token has no place.
    __device__ __forceinline__ std::int64_t at(int token, int head) const {
        const int sequence_of = sequence[token];
        if (sequence_of < 0) return -1;
        const int position = positions[token];
        const std::int64_t page = pages[static_cast<std::int64_t>(sequence_of) * max_pages +
                                        ops::table_entry(position / page_tokens, max_pages)];
        if (page < 0) return -1;
        return ((page * kv_heads + head) * page_tokens + position % page_tokens) * head_dim;
    }
};

inline KvPlace kv_place(const ops::PagedKv& kv, const ops::DeviceBatch& batch) {
    return {kv.keys.data,  kv.values.data,  kv.keys.dtype,  kv.kv_heads(), kv.page_tokens(),
            kv.head_dim(), batch.positions, batch.sequence, batch.pages,   batch.max_pages};
}

}  // namespace mr::cuda
