#include "cli/colour.h"

#include <unistd.h>

#include <cstdlib>

namespace mr::cli {

bool obeys_codes(int fd) {
    const char* const terminal = std::getenv("TERM");
    return terminal && *terminal && std::string_view(terminal) != "dumb" && ::isatty(fd) == 1;
}

Paint paint(int fd, Look look) {
    const char* const none = std::getenv("NO_COLOR");
    if ((none && *none) || !obeys_codes(fd)) return {};
    switch (look) {
        case Look::prompt:
            return {"\x1b[1;32m", "\x1b[0m"};
        case Look::faint:
            return {"\x1b[2m", "\x1b[0m"};
        case Look::warning:
            return {"\x1b[33m", "\x1b[0m"};
        case Look::failure:
            return {"\x1b[1;31m", "\x1b[0m"};
        case Look::name:
            return {"\x1b[36m", "\x1b[0m"};
    }
    return {};
}

std::string painted(int fd, Look look, std::string_view text) {
    const Paint codes = paint(fd, look);
    return std::string(codes.begin).append(text).append(codes.end);
}

}  // namespace mr::cli
