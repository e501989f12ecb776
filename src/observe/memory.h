// What memory this process holds, as the system counts it.
#pragma once

#include <cstddef>

namespace mr::observe {

// The most memory this process has held resident, in bytes.
std::size_t peak_resident_bytes();
// ... of it now, and how much of that is pages of files (the mapped weights).
struct Resident {
    std::size_t total = 0;
    std::size_t file = 0;
};
Resident resident_bytes();

}  // namespace mr::observe
