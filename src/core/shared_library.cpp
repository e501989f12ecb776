#include "core/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace mr {

SharedLibrary open_shared_library(const std::string& title, const char* variable,
                                  std::vector<std::string> names) {
    if (const char* const wanted = std::getenv(variable); wanted && *wanted) {
        if (std::string(wanted) == "off") return {nullptr, fmt::format("{} is off", variable)};
        names = {wanted};
    }
    for (const std::string& name : names) {
        if (void* const file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return {file, ""};
    }
    const char* const problem = dlerror();
    return {nullptr, fmt::format("{} was not found{}{}", title, problem ? ": " : "",
                                 problem ? problem : "")};
}

void* find_symbol(void* file, const char* name, std::string& missing) {
    void* const found = dlsym(file, name);
    if (!found) missing += (missing.empty() ? "" : ", ") + std::string(name);
    return found;
}

}  // namespace mr
