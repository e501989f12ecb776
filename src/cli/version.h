// The version of this program and how it was built.
#pragma once

#include <string>

namespace mr::cli {

// "millrace 0.2.0+37.g61c3958ab, commit 61c3958ab, GNU 12.2.0, CUDA 12.4": one line without its
// end.
std::string version_line();

}  // namespace mr::cli
