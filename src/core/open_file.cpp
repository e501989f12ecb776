#include "core/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace mr {
namespace {

const char* what_it_is(unsigned mode) {
    if (S_ISDIR(mode)) return "is a directory, not a file";
    if (S_ISFIFO(mode)) return "is a pipe, not a regular file";
    if (S_ISSOCK(mode)) return "is a socket, not a regular file";
    return "is a device, not a regular file";
}

[[noreturn]] void refuse(const std::string& path, unsigned mode) {
    throw Error::input(
        {.file = path, .problem = what_it_is(mode), .remedy = "give the file itself"});
}

}  // namespace

const char* remedy_of_open(int code) {
    switch (code) {
        case EMFILE:
            return "this process has too many files open: raise the limit (ulimit -n)";
        case ENFILE:
            return "the system has too many files open: close other programs";
        case EACCES:
        case EPERM:
        case EROFS:
            return "check its permissions";
        case ELOOP:
            return "its links lead nowhere: give the file itself";
        default:
            return "check the path";
    }
}

int open_regular(const std::string& path, int flags, unsigned mode) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
    struct stat status {};
    if (fd < 0) {
        const int code = errno;
        // A pipe without a reader, or a socket.
        if (code == ENXIO && ::stat(path.c_str(), &status) == 0) refuse(path, status.st_mode);
        ErrorInfo info{.file = path,
                       .problem = std::string("cannot be opened: ") + std::strerror(code),
                       .remedy = remedy_of_open(code)};
        if (code == EMFILE || code == ENFILE) throw Error::device(std::move(info));
        throw Error::input(std::move(info));
    }
    if (::fstat(fd, &status) != 0) {
        const int code = errno;
        ::close(fd);
        throw Error::input({.file = path, .problem = std::strerror(code)});
    }
    if (!S_ISREG(status.st_mode)) {
        ::close(fd);
        refuse(path, status.st_mode);
    }
    return fd;
}

}  // namespace mr
