// Opens files that may not be what their name suggests.
#pragma once

#include <string>

namespace mr {

// A descriptor of the regular file at `path`, opened with `flags` (of open(2)) without blocking:
// opening a pipe could wait forever for another process. Throws Error: input if the file is
// missing, not a regular file or not accessible; device if there are no descriptors left.
int open_regular(const std::string& path, int flags, unsigned mode = 0);

// Advice for the user on error `code` of open(2).
const char* remedy_of_open(int code);

}  // namespace mr
