#include "cli/existing_file.h"

#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace mr::cli {

void refuse_existing_file(const std::string& path, bool force) {
    std::error_code code;  // what cannot be looked at is reported by the writer
    if (force || !std::filesystem::is_regular_file(path, code)) return;
    throw Error::usage({.file = path,
                        .problem = "this file already exists",
                        .remedy = "give another name, or --force to replace it"});
}

bool same_file(const std::string& a, const std::string& b) {
    namespace fs = std::filesystem;
    std::error_code code;
    const fs::path first = fs::weakly_canonical(fs::absolute(a), code);
    if (code) return false;
    return first == fs::weakly_canonical(fs::absolute(b), code) && !code;
}

}  // namespace mr::cli
