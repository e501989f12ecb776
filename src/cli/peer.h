// Other engines, measured in the same run by the scripts of bench/peers.
#pragma once

#include <string>
#include <vector>

#include "cli/json.h"

namespace mr::cli {

// What runs bench/peers/SCRIPT, for a shell: by the python that MILLRACE_PYTHON names. Throws Error
// (usage) where the script is not there.
std::string peer_command(const std::string& script);

// Runs it with `arguments` (quoted as a shell wants them) and gives the JSON objects it prints, one
// a line. Throws Error where it prints none.
std::vector<Json> ask_peer(const std::string& script, const std::string& arguments);

}  // namespace mr::cli
