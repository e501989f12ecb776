// Sampling options that run and chat share.
#pragma once

#include <cstdint>

#include "cli/parser.h"
#include "decode/session.h"
#include "model/generation.h"

namespace mr::cli {

// -n, --temp, --top-k, --top-p, --min-p, --repeat-penalty, --repeat-window, --seed, --stop,
// --stop-id, --min-tokens, --ignore-eos
void add_sampling_options(const Command& command, decode::GenerateOptions& options);
// Uses the values in the model's files for options that were not given.
void use_advice(const Command& command, const model::Generation& advice,
                decode::GenerateOptions& options);
// A seed for a run without --seed: printed with the result, so that the run can be repeated.
std::uint64_t fresh_seed();

}  // namespace mr::cli
