// Opening files that may not be what their name says.
#pragma once

#include <string>

namespace mr {

// A descriptor of the regular file at `path`, opened with `flags` (of open(2)) without waiting: a
// pipe in its place would wait for another process for ever. Throws Error: input where it is not
// there, is something else or may not be opened; device where there are no descriptors left.
int open_regular(const std::string& path, int flags, unsigned mode = 0);

// What a person does about `code` of an open(2).
const char* remedy_of_open(int code);

}  // namespace mr
