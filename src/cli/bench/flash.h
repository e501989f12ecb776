// The tables of `bench attention` for plain tensors (flash.cpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "core/dtype.h"

namespace mr::cli {

struct FlashTables {
    std::vector<std::string> shapes;  // as flash_shapes.h writes them; none: those of `list`
    std::string list = "targets";     // wide, all
    std::vector<int> tokens;  // lengths of targets and of the grid; none: those of the table
    bool backward = true;
    bool torch = false;         // beside PyTorch
    std::optional<DType> type;  // of the grid; none: bf16 and f32
};

// Both add what they measured to `json` and say it as text, row by row. `matrix`: FLOP/s of the
// device.
using Say = std::function<void(const std::string& text)>;
void flash_table(const FlashTables& options, double matrix, Json& json, const Say& say);
void cs336_table(const FlashTables& options, double matrix, Json& json, const Say& say);
// Throws Error (usage) where a shape cannot be read.
void check_shapes(const FlashTables& options);

}  // namespace mr::cli
