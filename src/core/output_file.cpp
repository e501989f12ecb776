#include "core/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace mr {
namespace {
constexpr std::size_t kBuffer = std::size_t{1} << 20;
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), temporary_(path + ".partial." + std::to_string(::getpid())) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        throw Error::input({.file = path,
                            .problem = "is a directory, not a file",
                            .remedy = "give a file name for the output"});
    }
    // Renaming over a device or a pipe would replace it.
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
        throw Error::input({.file = path,
                            .problem = "is a device or a pipe, not a file",
                            .remedy = "give a file name for the output"});
    }
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot be created", errno);
    buffer_.reserve(kBuffer);
}

OutputFile::~OutputFile() {
    if (fd_ < 0) return;  // committed
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* action, int code) {
    throw Error::input({.file = path_,
                        .problem = std::string(action) + ": " + std::strerror(code),
                        .remedy = code == ENOSPC ? "free some space; the partial file was removed"
                                                 : "check the folder and its permissions"});
}

void OutputFile::write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    position_ += bytes;
    while (bytes > 0) {
        const std::size_t part = std::min(bytes, kBuffer - buffer_.size());
        buffer_.append(from, part);
        from += part;
        bytes -= part;
        if (buffer_.size() == kBuffer) flush();
    }
}

void OutputFile::pad_to(std::size_t alignment) {
    static constexpr char kZeros[64] = {};
    std::uint64_t missing = (alignment - position_ % alignment) % alignment;
    while (missing > 0) {
        const std::size_t part = std::min<std::uint64_t>(missing, sizeof kZeros);
        write(kZeros, part);
        missing -= part;
    }
}

void OutputFile::flush() {
    std::size_t done = 0;
    while (done < buffer_.size()) {
        const ssize_t count = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
        if (count < 0) {
            if (errno == EINTR) continue;
            fail("cannot be written", errno);
        }
        done += static_cast<std::size_t>(count);
    }
    buffer_.clear();
}

void OutputFile::commit() {
    flush();
    if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail("cannot be synced", errno);
    const int fd = fd_;
    if (::close(fd) != 0) {
        const int code = errno;
        fd_ = -1;
        ::unlink(temporary_.c_str());
        fail("cannot be closed", code);
    }
    fd_ = -1;
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
        const int code = errno;
        ::unlink(temporary_.c_str());
        fail("cannot be renamed into place", code);
    }
}

}  // namespace mr
