// Progress reports of long work. The command line draws them on a terminal, but not into a pipe.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace mr {

// progress(what, done, total), in bytes or items; may be empty.
using Progress =
    std::function<void(std::string_view what, std::uint64_t done, std::uint64_t total)>;

}  // namespace mr
