// The spec of a model that a measurement trains.
#pragma once

#include <string>

#include "model/spec.h"

namespace mr::cli {

// Throws Error (usage) where sequences of `seq` tokens are beyond the model's context.
void require_context(const model::ModelSpec& spec, int seq);
// Of MODEL, to be trained on the next token. Throws Error (usage) also where it fills in tokens.
model::ModelSpec next_token_spec(const std::string& model, int seq);

}  // namespace mr::cli
