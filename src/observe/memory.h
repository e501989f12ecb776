// The memory this process holds, as the system counts it.
#pragma once

#include <cstddef>

namespace mr::observe {

// The most memory this process has held resident, in bytes.
std::size_t peak_resident_bytes();

}  // namespace mr::observe
