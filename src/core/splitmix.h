// SplitMix64 (Steele, Lea and Flood, 2014): a mixer of 64 bits, for keys and for random weights.
#pragma once

#include <cstdint>

namespace mr {

// Output `n` of SplitMix64 started at `state`, computed directly: rows, and words of a row, can be
// made in any order and on any machine.
constexpr std::uint64_t splitmix(std::uint64_t state, std::uint64_t n = 0) {
    std::uint64_t z = state + (n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

}  // namespace mr
