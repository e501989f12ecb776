// The program with fault injection, only for tests: MILLRACE_FAULT=save:N kills it at the N-th
// point of saving; ctrl-c:N raises Ctrl-C there (docs/training-internals.md).
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/commands.h"
#include "train/fault.h"

namespace {

int fault_signal = SIGKILL;
long points_left = 0;

void count_down() {
    if (--points_left == 0) std::raise(fault_signal);
}

// False if it is neither.
bool read_fault(std::string_view text) {
    for (const auto& [kind, signal] : {std::pair<std::string_view, int>{"save:", SIGKILL},
                                       std::pair<std::string_view, int>{"ctrl-c:", SIGINT}}) {
        if (!text.starts_with(kind)) continue;
        text.remove_prefix(kind.size());
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, points_left);
        fault_signal = signal;
        return error == std::errc() && rest == end && points_left > 0;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    if (const char* const given = std::getenv("MILLRACE_FAULT")) {
        if (!read_fault(given)) {
            std::fprintf(stderr, "millrace_faulty: MILLRACE_FAULT is save:N or ctrl-c:N\n");
            return 2;
        }
        mr::train::save_point = count_down;
    }
    return mr::cli::program(argc, argv);
}
