// NLL through the decode steps of an engine: every token is fed as a step feeds its drawn token, so
// that the kernels of the step are tested as part of the graph or the single kernel.
#pragma once

#include <cstdint>
#include <span>

#include "core/progress.h"
#include "model/engine.h"

namespace mr::fusion {

// Mean NLL, in nats, of ids[2], ids[3], ... given those before them. The first token is given, the
// others are fed one by one. At least 3 ids, which fit the engine's context.
double score_fed(model::Engine& engine, std::span<const std::int32_t> ids,
                 const Progress& progress = {});

}  // namespace mr::fusion
