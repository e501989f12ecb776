// The only file that is recompiled when the commit changes (cmake/commit.cmake).
#include "cli/version.h"

#include <fmt/format.h>

#include "millrace/millrace.h"
#include "millrace_commit.h"  // MR_COMMIT; empty where the source is not a clone

namespace mr::cli {

std::string version_line() {
    const std::string commit = MR_COMMIT;
    return fmt::format("millrace {}{}, {}, {}", millrace::version(),
                       commit.empty() ? "" : ", commit " + commit, MR_COMPILER, MR_CUDA_VERSION);
}

}  // namespace mr::cli
