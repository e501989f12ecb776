// How this process was called, for reports.
#pragma once

#include <string>

namespace mr::cli {

// As the shell had it, without quotes, on one line.
std::string command_line();

}  // namespace mr::cli
