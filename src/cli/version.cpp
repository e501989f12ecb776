#include "cli/version.h"

#include <fmt/format.h>

#include "cli/terminal.h"
#include "core/commit.h"
#include "millrace/millrace.h"

namespace mr::cli {

std::string version_line() {
    const std::string commit = mr::commit();
    return fmt::format("{} {}{}, {}, {}", program_name(), millrace::version(),
                       commit.empty() ? "" : ", commit " + commit, MR_COMPILER, MR_CUDA_VERSION);
}

}  // namespace mr::cli
