// The output of `millrace info`, for info.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cli/json.h"
#include "core/arena.h"
#include "model/engine.h"
#include "model/model.h"

namespace mr::cli {

// The memory of a run, and the memory that there is.
struct InfoPlan {
    MemoryPlan memory;
    model::EngineOptions engine;  // with all defaults
    std::int64_t whole_pool = 0;  // positions of all sequences, or --pool; engine.pool may be fewer
    std::uint64_t available = 0;  // bytes
    bool fits() const { return memory.total() <= available; }
    bool cut() const { return fits() && engine.pool < whole_pool; }
};

// Bytes of the weights by type, as the engine holds them.
std::map<std::string, std::uint64_t> bytes_by_type(const model::Model& model);

// Lines of text. `machine` and `fits`: the parts of the JSON.
std::string machine_text(const Json& machine);
std::string model_text(const model::Model& model, double read_bandwidth);
std::string plan_text(const InfoPlan& plan);
std::string fits_text(const Json& fits, int context);

}  // namespace mr::cli
