// Writes rows to memory from registers in the layout of wgmma's results.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda::flash {

// Four lanes of a quad hold four words each of a row, 8 columns apart; afterwards each has the four
// words of one 16-byte piece: lane c the c-th.
__device__ __forceinline__ uint4 gather_quad(const std::uint32_t (&w)[4], int c) {
    const bool odd = c & 1, high = c & 2;
    std::uint32_t x[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const std::uint32_t mine = odd ? w[2 * j + 1] : w[2 * j];
        const std::uint32_t theirs = __shfl_xor_sync(~0u, odd ? w[2 * j] : w[2 * j + 1], 1);
        x[j][0] = odd ? theirs : mine;
        x[j][1] = odd ? mine : theirs;
    }
    std::uint32_t y[4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const std::uint32_t mine = high ? x[1][k] : x[0][k];
        const std::uint32_t theirs = __shfl_xor_sync(~0u, high ? x[0][k] : x[1][k], 2);
        y[k] = high ? theirs : mine;
        y[2 + k] = high ? mine : theirs;
    }
    return {y[0], y[1], y[2], y[3]};
}

}  // namespace mr::cuda::flash
