#include "core/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr int kMostLinks = 40;  // as the system has it

[[noreturn]] void refuse_device(const std::string& path) {
    throw Error::input({.file = path,
                        .problem = "is a device or a pipe, not a file",
                        .remedy = "give a file name for the output"});
}

// Where the links at the end of `path` lead, also where nothing is there yet.
std::string follow_links(const std::string& path) {
    fs::path target = path;
    std::error_code code;
    for (int i = 0; i < kMostLinks && fs::is_symlink(target, code); ++i) {
        const fs::path next = fs::read_symlink(target, code);
        if (code) break;
        target = target.parent_path() / next;  // `next` alone where it is absolute
        // /dev/stdout: an open file of ours, which a rename would not reach.
        if (target.string().starts_with("/proc/")) refuse_device(path);
    }
    return target.string();
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path),
      target_(follow_links(path)),
      temporary_(target_ + ".partial." + std::to_string(::getpid())) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        throw Error::input({.file = path,
                            .problem = "is a directory, not a file",
                            .remedy = "give a file name for the output"});
    }
    // Renaming over a device or a pipe would replace it.
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
        refuse_device(path);
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

void OutputFile::rewrite(std::uint64_t position, std::string_view bytes) {
    MR_CHECK(position <= position_ && bytes.size() <= position_ - position,
             "what is written again was written");
    flush();
    while (!bytes.empty()) {
        const ssize_t count =
            ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(position));
        if (count < 0) {
            if (errno == EINTR) continue;
            fail("cannot be written", errno);
        }
        bytes.remove_prefix(static_cast<std::size_t>(count));
        position += static_cast<std::uint64_t>(count);
    }
}

void OutputFile::sync() {
    flush();
    if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail("cannot be synced", errno);
}

void OutputFile::commit() {
    sync();
    const int fd = fd_;
    if (::close(fd) != 0) {
        const int code = errno;
        fd_ = -1;
        ::unlink(temporary_.c_str());
        fail("cannot be closed", code);
    }
    fd_ = -1;
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
        const int code = errno;
        ::unlink(temporary_.c_str());
        fail("cannot be renamed into place", code);
    }
}

void sync_path(const std::string& path) {
    const auto failed = [&](const char* action, int code) {
        throw Error::input({.file = path,
                            .problem = std::string(action) + ": " + std::strerror(code),
                            .remedy = "check the disk and the folder's permissions"});
    };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) failed("cannot be opened", errno);
    const int result = ::fsync(fd);
    const int code = errno;
    ::close(fd);
    // Some file systems have no such thing.
    if (result != 0 && code != EINVAL && code != EROFS) failed("cannot be synced", code);
}

}  // namespace mr
