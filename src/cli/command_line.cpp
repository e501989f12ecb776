#include "cli/command_line.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cli/terminal.h"

namespace mr::cli {

std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);  // it has no size to map it by
    std::string out{std::istreambuf_iterator<char>(file), {}};
    while (!out.empty() && out.back() == '\0') out.pop_back();
    std::replace(out.begin(), out.end(), '\0', ' ');
    std::replace(out.begin(), out.end(), '\n', ' ');
    return out.empty() ? program_name() : out;
}

}  // namespace mr::cli
