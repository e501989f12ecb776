// A library that is opened when first needed, and may be missing.
#pragma once

#include <string>
#include <vector>

namespace mr {

struct SharedLibrary {
    void* file = nullptr;  // for dlsym(); never closed
    std::string why;       // why it is missing
};
// The first of `names` that can be opened. The environment variable `variable` names another file
// instead, or says "off". `title`: its name in messages.
SharedLibrary open_shared_library(const std::string& title, const char* variable,
                                  std::vector<std::string> names);

}  // namespace mr
