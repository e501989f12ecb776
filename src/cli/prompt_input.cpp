#include "cli/prompt_input.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/engine.h"
#include "cli/terminal.h"

namespace mr::cli {
namespace {

bool input_is_piped() {
    struct stat status {};
    return ::fstat(STDIN_FILENO, &status) == 0 &&
           (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string without_newline(std::string text) {
    if (!text.ends_with('\n')) return text;
    text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

}  // namespace

std::string prompt_text(const std::string& words, bool given) {
    if (given) return words == "-" ? without_newline(read_input("-")) : words;
    if (!input_is_piped()) return {};
    // A service or a remote shell may hold a pipe open and never write to it.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, 2000) == 0) {
        err("millrace: waiting for a prompt from standard input; give one with -p, or "
            "</dev/null for none\n");
    }
    return without_newline(read_input("-"));
}

}  // namespace mr::cli
