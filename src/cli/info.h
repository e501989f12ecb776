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

// Bytes of the matrices by type, as the engine holds them.
std::map<std::string, std::uint64_t> bytes_by_type(const model::Model& model);

// Lines of text. `machine` and `fits`: the parts of the JSON.
std::string machine_text(const Json& machine);
std::string model_text(const model::Model& model, double read_bandwidth);
std::string plan_text(const MemoryPlan& plan, const model::EngineOptions& engine);
std::string fits_text(const Json& fits, int context);

}  // namespace mr::cli
