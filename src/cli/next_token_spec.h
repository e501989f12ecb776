// The spec of a model that a measurement trains.
#pragma once

#include <string>

#include "model/spec.h"

namespace mr::cli {

// Throws Error (usage) if sequences of `seq` tokens exceed the model's context.
void require_context(const model::ModelSpec& spec, int seq);
// The spec of MODEL for next-token training. Throws Error (usage) also for a diffusion model.
model::ModelSpec next_token_spec(const std::string& model, int seq);

}  // namespace mr::cli
