// Where numbers stop being numbers: for --check-nan.
#pragma once

#include <cstdint>
#include <optional>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// A row with a NaN or an infinity in it, and at which stage of a pass it was met.
struct NotFinite {
    int stage = 0;
    std::int64_t row = 0;
    bool nan = false;  // there is a NaN in it; else infinities alone

    // As one word whose least is the first: the earliest stage, of that the first row.
    // Rows are below 2^31.
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

// The first row of x, f32 [rows, cols], that has a NaN or an infinity; none where all is finite.
std::optional<NotFinite> find_not_finite(const Context& ctx, Tensor x, int stage);

}  // namespace mr::ops
