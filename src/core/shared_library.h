// A library that is opened when first needed, and may be missing.
#pragma once

#include <string>
#include <vector>

namespace mr {

struct SharedLibrary {
    void* file = nullptr;  // never closed
    std::string why;       // why it is missing
};
// The first of `names` that can be opened. The environment variable `variable` names another file
// instead, or says "off". `title`: its name in messages.
SharedLibrary open_shared_library(const std::string& title, const char* variable,
                                  std::vector<std::string> names);

// The address of `name` in an open library. Where there is none, null, and `missing` is a list of
// names that has this one, too.
void* find_symbol(void* file, const char* name, std::string& missing);
template <typename Function>
void find_function(void* file, const char* name, Function*& function, std::string& missing) {
    function = reinterpret_cast<Function*>(find_symbol(file, name, missing));
}

}  // namespace mr
