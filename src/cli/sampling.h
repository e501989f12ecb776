// The options of generation that run and chat share.
#pragma once

#include <cstdint>

#include "cli/parser.h"
#include "decode/session.h"

namespace mr::cli {

// -n, --temp, --top-k, --top-p, --min-p, --repeat-penalty, --repeat-window, --seed, --stop,
// --ignore-eos
void add_sampling_options(const Command& command, decode::GenerateOptions& options);
// A seed for a run that was given none: printed with the result, so that the run can be repeated.
std::uint64_t fresh_seed();

}  // namespace mr::cli
