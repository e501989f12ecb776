// A small number added many times, in the types that training adds in: why sums, masters and
// moments want more bits than what is summed.
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
    Rounding rounding = Rounding::nearest;  // of the sum; stochastic: bf16 alone
};

struct Accumulated {
    double addend = 0;  // as its type has it
    double result = 0;
    // After so many additions the sum stays the same to the end; -1: it never does.
    std::int64_t stalled_after = -1;
};

// The addition is one of f32 whose result is rounded to the type of the sum. f32 has more than
// twice the bits of the other two, so the result is the rounded exact sum.
// `seed`: of stochastic rounding; addition i has a draw of its own.
Accumulated accumulate(const Accumulation& what, double value, std::int64_t times,
                       std::uint64_t seed);

// Over seeds 1 to `seeds`.
struct Spread {
    double mean = 0;
    double deviation = 0;  // of one result
};
Spread accumulate_often(const Accumulation& what, double value, std::int64_t times,
                        std::int64_t seeds);

// The rows of the table: each type alone, halves into an f32 sum, and what happens to a bf16
// parameter that an optimizer adds f32 steps to, by either rounding.
std::vector<Accumulation> accumulation_rows();

}  // namespace mr::precision
