// Other engines, measured in the same run by the scripts of bench/peers.
#pragma once

#include <string>
#include <vector>

#include "cli/json.h"

namespace mr::cli {

// The shell command that runs bench/peers/SCRIPT with the python of MILLRACE_PYTHON. Throws Error
// (usage) if the script is missing.
std::string peer_command(const std::string& script);

// Runs it with `arguments` (quoted for a shell) and returns the JSON objects it prints, one per
// line. Throws Error if it prints none.
std::vector<Json> ask_peer(const std::string& script, const std::string& arguments);

}  // namespace mr::cli
