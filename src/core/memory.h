// How much memory this process may use: the machine's, or its control group's.
#pragma once

#include <cstdint>

namespace mr {

// All of the memory, in bytes: the machine's, or the group's limit if that is smaller. 0: unknown.
std::uint64_t available_memory_bytes();

// What is free of it now. The cache of files counts as free. 0: unknown.
std::uint64_t free_memory_bytes();

// What this process holds in memory, without the pages of files. 0: unknown.
std::uint64_t own_memory_bytes();

}  // namespace mr
