#include "observe/own_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"

namespace mr::observe {

void require_own_file(const std::string& path, std::string_view beginning) {
    std::error_code code;  // what cannot be looked at is reported by the writer
    if (!std::filesystem::is_regular_file(path, code)) return;
    std::ifstream file(path, std::ios::binary);
    std::string begins(beginning.size(), '\0');
    file.read(begins.data(), static_cast<std::streamsize>(begins.size()));
    if (!file.is_open() || file.gcount() == 0 || begins == beginning) return;
    throw Error::usage({.file = path,
                        .problem = "this file exists and is no such report: it would be lost",
                        .remedy = "give another name, or remove it"});
}

}  // namespace mr::observe
