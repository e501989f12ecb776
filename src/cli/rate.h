// Rates of links and memory as users write them.
#pragma once

#include <string>

namespace mr::cli {

// Bytes per second of "900GB/s", "400Gb/s", "50GiB/s". Throws Error (usage) naming `option`.
double parse_rate(const std::string& text, const char* option);

}  // namespace mr::cli
