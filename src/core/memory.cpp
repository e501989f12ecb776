#include "core/memory.h"

#include <sys/sysinfo.h>

#include <algorithm>

#include "core/cgroup.h"

namespace mr {

std::uint64_t available_memory_bytes() {
    std::uint64_t bytes = 0;
    struct sysinfo memory {};
    if (::sysinfo(&memory) == 0) bytes = std::uint64_t{memory.totalram} * memory.mem_unit;
    const auto limit = cgroup_memory_limit();
    return limit ? std::min(bytes, *limit) : bytes;
}

}  // namespace mr
