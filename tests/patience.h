// Shared by tests that wait or measure time: their outcome must not depend on how busy this machine
// is.
#pragma once

#include <chrono>
#include <ctime>

namespace mr::test {

// The most a test waits for what must happen: only what hangs takes this long.
inline constexpr std::chrono::seconds kHang{120};

// Processor time of this process so far. Unlike the clock, other programs do not use it up.
inline double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace mr::test
