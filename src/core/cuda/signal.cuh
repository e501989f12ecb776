// Tagged words: a result with a tag that marks its arrival, for blocks that run at the same time.
//
// A word is four bytes of a result and a four-byte tag; all eight are written at once and read at
// once. A reader polls the word until it has the expected tag, and then has the result as well: one
// round trip to L2. A counter would cost a fence, an addition, reads of the counter and then of the
// results, one after the other. The price is twice the bytes, and a rule for tags: the slot must
// not already hold the expected tag.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

using Word = unsigned long long;  // result in the low half, tag in the high half

__device__ __forceinline__ void send(Word* to, unsigned value, unsigned tag) {
    asm volatile(
        "{ .reg .b64 w; mov.b64 w, {%1, %2}; st.relaxed.gpu.global.b64 [%0], w; }" ::"l"(to),
        "r"(value), "r"(tag)
        : "memory");
}
__device__ __forceinline__ void send(Word* to, float value, unsigned tag) {
    send(to, __float_as_uint(value), tag);
}

// Two neighbouring words; 16-byte aligned.
__device__ __forceinline__ void send(Word* to, float first, float second, unsigned tag) {
    asm volatile(
        "{ .reg .b64 v, w; mov.b64 v, {%1, %3}; mov.b64 w, {%2, %3};\n"
        "st.relaxed.gpu.global.v2.b64 [%0], {v, w}; }" ::"l"(to),
        "r"(__float_as_uint(first)), "r"(__float_as_uint(second)), "r"(tag)
        : "memory");
}

// Two neighbouring words, 16-byte aligned, in their present state: x and z are the results, y and w
// the tags.
__device__ __forceinline__ uint4 look(const Word* at) {
    Word a, b;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(at)
                 : "memory");
    return {static_cast<unsigned>(a), static_cast<unsigned>(a >> 32), static_cast<unsigned>(b),
            static_cast<unsigned>(b >> 32)};
}

// Waits for kCount pairs of words, at(i) being the i-th; gives zeros where at(i) is null. A pair
// that has arrived is not read again. If a block never answers, the kernel traps after a minute
// instead of hanging.
template <int kCount, typename At>
__device__ __forceinline__ void receive(uint4 (&v)[kCount], unsigned tag, At&& at) {
    const auto missing = [&](const uint4& pair) { return pair.y != tag || pair.w != tag; };
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        const Word* from = at(i);
        v[i] = uint4{0, tag, 0, tag};
        if (from) v[i] = look(from);
    }
    const long long begin = clock64();
    while (true) {
        bool any = false;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (missing(v[i])) {
                any = true;
                v[i] = look(at(i));
            }
        }
        if (!any) break;
        if (clock64() - begin > (1ll << 37)) __trap();
    }
}
// Waits for one word; its neighbour may hold anything.
__device__ __forceinline__ unsigned receive_one(const Word* at, unsigned tag) {
    const long long begin = clock64();
    while (true) {
        Word w;
        asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(w) : "l"(at) : "memory");
        if (static_cast<unsigned>(w >> 32) == tag) return static_cast<unsigned>(w);
        if (clock64() - begin > (1ll << 37)) __trap();
    }
}
__device__ __forceinline__ uint4 receive(const Word* at, unsigned tag) {
    uint4 v[1];
    receive(v, tag, [&](int) { return at; });
    return v[0];
}

}  // namespace mr::cuda
