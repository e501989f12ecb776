// How much memory this process may use: the machine's, or its control group's limit.
#pragma once

#include <cstdint>

namespace mr {

// In bytes; the smaller of the two. 0: unknown.
std::uint64_t available_memory_bytes();

}  // namespace mr
