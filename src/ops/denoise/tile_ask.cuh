// A row's request to its tiles on the GPU (tile_draw.h), and a tile's record in a kernel.
#pragma once

#include "ops/denoise/denoise_cuda.h"

namespace mr::cuda {

__device__ __forceinline__ ops::TileAsk tile_ask(const GuessRow& row) {
    ops::TileAsk ask;
    ask.temperature = row.sampling.temperature;
    ask.truth = row.truth;
    ask.entropy = row.entropy != 0;
    ask.seed = row.sampling.seed;
    ask.position = static_cast<std::uint64_t>(row.sampling.position);
    ask.step = static_cast<std::uint32_t>(row.sampling.step);
    return ask;
}

// load(i): the logit of token i of the tile, called only for tokens of the vocabulary.
template <typename Load>
__device__ __forceinline__ ops::TileRecord tile_record(int tile, int vocab, int mask,
                                                       const ops::TileAsk& ask, Load&& load) {
    float x[ops::kDrawTile];
#pragma unroll
    for (int i = 0; i < ops::kDrawTile; ++i) {
        const int id = tile * ops::kDrawTile + i;
        x[i] = id < vocab && id != mask ? load(i) : ops::kNoLogit;
    }
    return ops::tile_record(x, tile, ask);
}

}  // namespace mr::cuda
