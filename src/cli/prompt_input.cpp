#include "cli/prompt_input.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/engine.h"
#include "cli/terminal.h"

namespace mr::cli {
namespace {

std::string without_newline(std::string text) {
    if (!text.ends_with('\n')) return text;
    text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

}  // namespace

std::string piped_text(const char* what, const char* otherwise) {
    struct stat status {};
    if (::fstat(STDIN_FILENO, &status) != 0 ||
        !(S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode))) {
        return {};
    }
    // A service or a remote shell may hold a pipe open and never write to it.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, 2000) == 0) {
        err(fmt::format("millrace: waiting for {} from standard input; {}\n", what, otherwise));
    }
    return read_input("-");
}

std::string prompt_text(const std::string& words, bool given) {
    if (given) return words == "-" ? without_newline(read_input("-")) : words;
    return without_newline(piped_text("a prompt", "give one with -p, or </dev/null for none"));
}

}  // namespace mr::cli
