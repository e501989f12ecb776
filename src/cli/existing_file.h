// Files of the user's that a command would replace.
#pragma once

#include <string>

namespace mr::cli {

// Throws Error (usage) if `path` is a regular file and `force`, the option --force, was not given.
void refuse_existing_file(const std::string& path, bool force);

// Whether both names lead to one file, which need not exist.
bool same_file(const std::string& a, const std::string& b);

}  // namespace mr::cli
