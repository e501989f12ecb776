#include "core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace mr {
namespace {

namespace fs = std::filesystem;

// Calls visit(folder, v2) for this process's group under `controller` and all groups above it.
template <typename Visit>
void walk_up(const fs::path& groups, const fs::path& mount, const std::string& controller,
             const Visit& visit) {
    std::ifstream lines(groups);
    for (std::string line; std::getline(lines, line);) {
        // "0::/PATH" in v2, "7:cpu,memory:/PATH" in v1.
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        std::string controllers = ",";
        controllers.append(line, first + 1, second - first - 1).push_back(',');
        const bool v2 = controllers == ",,";
        if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
        const fs::path root = v2 ? mount : mount / controller;
        // In a container the path may be the host's and not exist here; the root does.
        fs::path group = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
        for (;;) {
            visit(root / group, v2);
            if (group.empty()) break;
            group = group.parent_path();
        }
    }
}

template <typename T>
void keep_least(std::optional<T>& least, T limit) {
    least = std::min(least.value_or(limit), limit);
}

}  // namespace

std::optional<std::uint64_t> cgroup_memory_limit(const fs::path& groups, const fs::path& mount) {
    std::optional<std::uint64_t> least;
    walk_up(groups, mount, "memory", [&](const fs::path& group, bool v2) {
        std::ifstream file(group / (v2 ? "memory.max" : "memory.limit_in_bytes"));
        std::uint64_t limit = 0;
        if (file >> limit) keep_least(least, limit);  // fails for "max"
    });
    return least;
}

std::optional<std::uint64_t> cgroup_memory_free(const fs::path& groups, const fs::path& mount) {
    std::optional<std::uint64_t> least;
    walk_up(groups, mount, "memory", [&](const fs::path& group, bool v2) {
        std::ifstream limit_file(group / (v2 ? "memory.max" : "memory.limit_in_bytes"));
        std::ifstream used_file(group / (v2 ? "memory.current" : "memory.usage_in_bytes"));
        std::uint64_t limit = 0, used = 0;
        if (!(limit_file >> limit) || !(used_file >> used)) return;
        std::ifstream parts(group / "memory.stat");
        std::string name;
        for (std::uint64_t bytes = 0; parts >> name >> bytes;) {
            if (name == (v2 ? "inactive_file" : "total_inactive_file") ||
                name == (v2 ? "active_file" : "total_active_file")) {
                used -= std::min(used, bytes);
            }
        }
        keep_least(least, limit - std::min(limit, used));
    });
    return least;
}

std::optional<double> cgroup_cpu_quota(const fs::path& groups, const fs::path& mount) {
    std::optional<double> least;
    walk_up(groups, mount, "cpu", [&](const fs::path& group, bool v2) {
        std::ifstream quota_file(group / (v2 ? "cpu.max" : "cpu.cfs_quota_us"));
        std::ifstream period_file(group / "cpu.cfs_period_us");
        std::int64_t quota = 0, period = 0;  // in microseconds; a quota of "max" or -1: none
        const bool read = (quota_file >> quota) && ((v2 ? quota_file : period_file) >> period);
        if (!read || quota <= 0 || period <= 0) return;
        keep_least(least, static_cast<double>(quota) / static_cast<double>(period));
    });
    return least;
}

}  // namespace mr
