// Paths as they are typed: no shell has read them.
#pragma once

#include <string>

namespace mr::cli {

// With the home folder in place of a ~ at the beginning; as it is if there is no home.
std::string with_home(const std::string& path);

}  // namespace mr::cli
