// The tables of `millrace-lab attention` for plain tensors (flash.cpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "core/dtype.h"

namespace mr::cli {

struct FlashTables {
    std::vector<std::string> shapes;  // as in flash_shapes.h; empty: those of `list`
    std::string list = "targets";     // wide, all
    std::vector<int> tokens;          // lengths for targets and grid; empty: the table's own
    bool backward = true;
    bool torch = false;         // compare with PyTorch
    std::optional<DType> type;  // for the grid; none: bf16 and f32
};

// Both add their measurements to `json` and print them as text, row by row. `matrix`: FLOP/s of the
// device.
using Say = std::function<void(const std::string& text)>;
void flash_table(const FlashTables& options, double matrix, Json& json, const Say& say);
void cs336_table(const FlashTables& options, double matrix, Json& json, const Say& say);
// Throws Error (usage) if a shape cannot be parsed.
void check_shapes(const FlashTables& options);

}  // namespace mr::cli
