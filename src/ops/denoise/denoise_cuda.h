// What logits on the GPU say of unknown tokens: ops::guess() for many rows at once.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/denoise/denoise.h"
#include "ops/denoise/tile_draw.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

// How a row is guessed, in device memory.
struct GuessRow {
    // Temperature, filters, seed, position and step; without a penalty. A row that is not active is
    // skipped.
    SampleRow sampling;
    std::int32_t truth;    // the token that stands there; -1: one is drawn
    std::int32_t drawn;    // 1: confidence is the drawn token's (ops::DenoiseParams::drawn)
    std::int32_t entropy;  // 1: the entropy is wanted
    std::int32_t unused;
};
GuessRow guess_row(const ops::SampleParams& sampling, const ops::DenoiseParams& how,
                   std::int64_t position, std::int32_t step, std::int32_t truth);

struct DeviceGuess {
    ops::Guess guess;
    std::uint32_t flags;  // SampleFlag
};

// out[r] of row r of logits f32 [rows, vocab], which lose the probability of the token `mask`; of
// rows whose draw is filtered (ops::draw_is_filtered()). The bits of a row do not depend on the
// other rows; confidence and entropy agree with the CPU's to the weights' 2^-40. `team` as in
// sample().
void guess(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
           DeviceGuess* out, int team = 0);
// The same of rows whose draw is not filtered. Tokens are the CPU's: tile_draw.h.
void guess_by_tiles(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
                    DeviceGuess* out);
// ... from records [count, tiles] of such rows (Finish::records of linear_small()): the same bits.
void guess_by_records(const Context& ctx, const ops::TileRecord* records, std::int64_t count,
                      std::int64_t vocab, const GuessRow* rows, DeviceGuess* out);

}  // namespace mr::cuda
