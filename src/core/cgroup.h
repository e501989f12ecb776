// The limits of this process's control group, such as a container's.
//
// `groups` is /proc/self/cgroup, `mount` is /sys/fs/cgroup. A limit is the smallest on the way from
// the process's group to the root; empty if there is none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace mr {

inline constexpr const char* kOwnGroups = "/proc/self/cgroup";
inline constexpr const char* kGroupMount = "/sys/fs/cgroup";

// In bytes (v2's memory.max, v1's memory/memory.limit_in_bytes).
std::optional<std::uint64_t> cgroup_memory_limit(const std::filesystem::path& groups = kOwnGroups,
                                                 const std::filesystem::path& mount = kGroupMount);

// What the groups with a limit have left of it, in bytes. The cache of files counts as free.
std::optional<std::uint64_t> cgroup_memory_free(const std::filesystem::path& groups = kOwnGroups,
                                                const std::filesystem::path& mount = kGroupMount);

// Seconds of CPU time per second: 2 with `docker run --cpus=2` (v2's cpu.max, v1's
// cpu/cpu.cfs_quota_us and cpu.cfs_period_us).
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& groups = kOwnGroups,
                                       const std::filesystem::path& mount = kGroupMount);

}  // namespace mr
