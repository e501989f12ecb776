// A small number added many times, in the types used in training: why sums, masters and moments
// need more bits than the summands.
#pragma once

#include <cstdint>
#include <vector>

namespace mr::precision {

enum class Format { f32, f16, bf16 };
enum class Rounding { nearest, stochastic };  // nearest: ties to even

// sum = round(sum + addend), from 0. The addend is rounded to its type first.
struct Accumulation {
    Format addend = Format::f32;
    Format sum = Format::f32;
    Rounding rounding = Rounding::nearest;  // of the sum; stochastic: only bf16
};

struct Accumulated {
    double addend = 0;  // rounded to its type
    double result = 0;
    // After this many additions the sum no longer changes; -1: it always does.
    std::int64_t stalled_after = -1;
};

// Each addition is done in f32 and rounded to the type of the sum. f32 has more than twice the bits
// of the other two, so the result is the correctly rounded sum. `seed`: for stochastic rounding;
// each addition has its own draw.
Accumulated accumulate(const Accumulation& what, double value, std::int64_t times,
                       std::uint64_t seed);

// Over seeds 1 to `seeds`.
struct Spread {
    double mean = 0;
    double deviation = 0;  // of one result
};
Spread accumulate_often(const Accumulation& what, double value, std::int64_t times,
                        std::int64_t seeds);

// The rows of the table: each type alone, 16-bit summands into an f32 sum, and a bf16 parameter to
// which an optimizer adds f32 steps, with either rounding.
std::vector<Accumulation> accumulation_rows();

}  // namespace mr::precision
