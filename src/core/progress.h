// How long work says how far it is. The command line draws it; a pipe sees nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace mr {

// progress(what, done, total), in bytes or items; may be empty.
using Progress =
    std::function<void(std::string_view what, std::uint64_t done, std::uint64_t total)>;

}  // namespace mr
