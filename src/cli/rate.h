// Rates of links and memory as users write them.
#pragma once

#include <cstdint>
#include <string>

namespace mr::cli {

// Bytes per second of "900GB/s", "400Gb/s", "50GiB/s". Throws Error (usage) naming `option`.
double parse_rate(const std::string& text, const char* option);

// An amount of memory, as in 24GB or 24GiB, in bytes. Throws Error (usage) naming `option`.
std::uint64_t parse_memory(const std::string& text, const char* option);

}  // namespace mr::cli
