// Finds the first NaN or infinity, for --check-nan.
#pragma once

#include <cstdint>
#include <optional>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// A row with a NaN or an infinity, and the stage of the pass at which it appeared.
struct NotFinite {
    int stage = 0;
    std::int64_t row = 0;
    bool nan = false;  // it has a NaN; else only infinities

    // Packed into one word whose minimum is the first: the earliest stage, then the first row. Rows
    // are below 2^31.
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    constexpr std::uint64_t packed() const {
        return static_cast<std::uint64_t>(stage) << 32 | static_cast<std::uint64_t>(row) << 1 |
               static_cast<std::uint64_t>(nan);
    }
    static constexpr std::optional<NotFinite> unpacked(std::uint64_t word) {
        if (word == kNone) return std::nullopt;
        return NotFinite{static_cast<int>(word >> 32),
                         static_cast<std::int64_t>((word & 0xffffffffu) >> 1), (word & 1) != 0};
    }
    friend bool operator==(const NotFinite&, const NotFinite&) = default;
};

// The first row of x, f32 [rows, cols], with a NaN or an infinity; none if all is finite.
std::optional<NotFinite> find_not_finite(const Context& ctx, Tensor x, int stage);

}  // namespace mr::ops
