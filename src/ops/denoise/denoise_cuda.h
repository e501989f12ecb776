// Guesses for unknown tokens from logits on the GPU: ops::guess() for many rows at once.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/denoise/denoise.h"
#include "ops/denoise/tile_draw.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

// How to guess a row, in device memory.
struct GuessRow {
    // Temperature, filters, seed, position and
    // step; no penalty. An inactive row is skipped.
    SampleRow sampling;
    std::int32_t truth;    // the known token; -1: draw one
    std::int32_t drawn;    // 1: confidence of the drawn token (ops::DenoiseParams::drawn)
    std::int32_t entropy;  // 1: compute the entropy
    std::int32_t unused;
};
GuessRow guess_row(const ops::SampleParams& sampling, const ops::DenoiseParams& how,
                   std::int64_t position, std::int32_t step, std::int32_t truth);

struct DeviceGuess {
    ops::Guess guess;
    std::uint32_t flags;  // SampleFlag
};

// out[r] for row r of logits f32 [rows, vocab], in which the token `mask` loses its probability;
// for rows whose draw is filtered (ops::draw_is_filtered()). The bits of a row do not depend on the
// other rows; confidence and entropy agree with the CPU's to 2^-40 of the weights. `team` as in
// sample().
void guess(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
           DeviceGuess* out, int team = 0);
// The same for rows whose draw is not filtered. Tokens are the same as the CPU's (tile_draw.h).
void guess_by_tiles(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
                    DeviceGuess* out);
// The same from records [count, tiles] of such rows (Finish::records of linear_small()).
void guess_by_records(const Context& ctx, const ops::TileRecord* records, std::int64_t count,
                      std::int64_t vocab, const GuessRow* rows, DeviceGuess* out);

}  // namespace mr::cuda
