#include "core/memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "core/cgroup.h"

namespace mr {
namespace {

// From lines such as "MemAvailable:   16303392 kB".
std::uint64_t bytes_of(const char* path, const std::string& name) {
    std::ifstream file(path);
    for (std::string word; file >> word;) {
        std::uint64_t kib = 0;
        if (word == name && file >> kib) return kib * 1024;
        file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return 0;
}

}  // namespace

std::uint64_t available_memory_bytes() {
    std::uint64_t bytes = 0;
    struct sysinfo memory {};
    if (::sysinfo(&memory) == 0) bytes = std::uint64_t{memory.totalram} * memory.mem_unit;
    const auto limit = cgroup_memory_limit();
    return limit ? std::min(bytes, *limit) : bytes;
}

std::uint64_t free_memory_bytes() {
    const std::uint64_t bytes = bytes_of("/proc/meminfo", "MemAvailable:");
    const auto left = cgroup_memory_free();
    if (!left) return bytes;
    const std::uint64_t least = bytes > 0 ? std::min(bytes, *left) : *left;
    return std::max<std::uint64_t>(least, 1);  // a group at its limit has none, which is known
}

std::uint64_t own_memory_bytes() { return bytes_of("/proc/self/status", "RssAnon:"); }

}  // namespace mr
