// How much device memory this process holds in arenas: what a plan is held against.
#pragma once

#include <cstdint>

namespace mr::cuda {

// Bytes of all DeviceArenas there are now, as they asked for them. What the driver takes for itself
// (code, contexts, graphs) is not among them.
std::uint64_t held_bytes();

}  // namespace mr::cuda
