#include "ops/check/check.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace mr::ops {

std::optional<NotFinite> find_not_finite(const Context& ctx, Tensor x, int stage) {
    MR_CHECK(x && x.dtype == DType::f32 && x.shape.rank == 2,
             "what is checked is f32 [rows, cols]");
    const LedgerEntry entry(ctx.ledger, OpKind::check, x.bytes(), 0, 0);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
        const float* values = x.f32(row);
        // Magnitudes as integers sort like the numbers, with infinity and NaN last.
        std::uint32_t most = 0;
        for (std::int64_t i = 0; i < x.cols(); ++i) {
            most = std::max(most, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
        }
        if (most >= 0x7f800000u) return NotFinite{stage, row, most > 0x7f800000u};
    }
    return std::nullopt;
}

}  // namespace mr::ops
