// How much memory this process may use: the machine's, or its control group's limit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace mr {

// In bytes; the smaller of the two. 0: unknown.
std::uint64_t available_memory_bytes();

// The smallest limit on the way from this process's control group to the root; empty if there is
// none. `groups` is /proc/self/cgroup, `mount` is /sys/fs/cgroup (v2's memory.max, v1's
// memory/memory.limit_in_bytes).
std::optional<std::uint64_t> cgroup_memory_limit(const std::filesystem::path& groups,
                                                 const std::filesystem::path& mount);

}  // namespace mr
