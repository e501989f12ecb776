// FNV-1a, 64 bits: tells a damaged file from a good one, and is written down in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mr {

inline constexpr std::uint64_t kFnvStart = 0xCBF29CE484222325ull;

// Works in pieces of any size: fnv1a(b, fnv1a(a)) == fnv1a(ab).
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t before = kFnvStart) {
    std::uint64_t hash = before;
    for (const std::byte b : bytes) {
        hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3ull;
    }
    return hash;
}

}  // namespace mr
