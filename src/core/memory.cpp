#include "core/memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace mr {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::optional<std::uint64_t> cgroup_memory_limit(const fs::path& groups, const fs::path& mount) {
    std::optional<std::uint64_t> least;
    std::ifstream lines(groups);
    for (std::string line; std::getline(lines, line);) {
        // "0::/PATH" in v2, "7:cpu,memory:/PATH" in v1.
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        std::string controllers = ",";
        controllers.append(line, first + 1, second - first - 1).push_back(',');
        const bool v2 = controllers == ",,";
        if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
        const fs::path root = v2 ? mount : mount / "memory";
        const char* name = v2 ? "memory.max" : "memory.limit_in_bytes";
        // In a container the path may be the host's and not exist here; the root does.
        fs::path group = fs::path(line.substr(second + 1)).relative_path().lexically_normal();
        for (;;) {
            std::ifstream file(root / group / name);
            std::uint64_t limit = 0;
            if (file >> limit) least = std::min(least.value_or(limit), limit);  // fails for "max"
            if (group.empty()) break;
            group = group.parent_path();
        }
    }
    return least;
}

std::uint64_t available_memory_bytes() {
    std::uint64_t bytes = 0;
    struct sysinfo memory {};
    if (::sysinfo(&memory) == 0) bytes = std::uint64_t{memory.totalram} * memory.mem_unit;
    const auto limit = cgroup_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    return limit ? std::min(bytes, *limit) : bytes;
}

}  // namespace mr
