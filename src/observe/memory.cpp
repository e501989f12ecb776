#include "observe/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace mr::observe {

std::size_t peak_resident_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::size_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

Resident resident_bytes() {
    std::ifstream in("/proc/self/statm");
    std::size_t size = 0, resident = 0, shared = 0;
    if (!(in >> size >> resident >> shared)) return {};
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return {resident * page, shared * page};
}

}  // namespace mr::observe
