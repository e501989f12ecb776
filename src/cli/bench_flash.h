// The tables of `bench attention` for plain tensors (bench_flash.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "core/dtype.h"

namespace mr::cli {

struct FlashTables {
    std::vector<int> tokens;  // lengths of sequences; none: those of the table
    bool backward = true;
    bool torch = false;         // beside PyTorch
    std::optional<DType> type;  // of the grid; none: bf16 and f32
};

// Both add what they measured to `json` and give it as text. `matrix`: FLOP/s of the device.
std::string flash_table(const FlashTables& options, double matrix, Json& json);
std::string cs336_table(const FlashTables& options, double matrix, Json& json);

}  // namespace mr::cli
