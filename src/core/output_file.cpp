#include "core/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/open_file.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr int kMostLinks = 40;         // Linux's own limit
constexpr int kMostNames = 100;        // names to try
constexpr int kMostProcess = 1 << 22;  // Linux's largest process id
constexpr unsigned kPermissions = 0777, kUsual = 0644;

[[noreturn]] void refuse_device(const std::string& path) {
    throw Error::input({.file = path,
                        .problem = "is a device or a pipe, not a file",
                        .remedy = "give a file name for the output"});
}

// Whether `digits` is a number from `least` to `most`, as make_temporary() writes it.
bool is_number(std::string_view digits, int least, int most) {
    int value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    return error == std::errc{} && rest == end && digits.front() != '0' && value >= least &&
           value <= most;
}

// Whether `name` is `start` + PID or `start` + PID.NUMBER, and nothing that a person would choose.
bool is_temporary(std::string_view name, std::string_view start) {
    if (!name.starts_with(start)) return false;
    name.remove_prefix(start.size());
    const std::size_t dot = name.find('.');
    return is_number(name.substr(0, dot), 1, kMostProcess) &&
           (dot == name.npos || is_number(name.substr(dot + 1), 2, kMostNames));
}

// Removes temporary files of `target` that killed processes left: those that no process has locked.
void remove_leftovers(const std::string& target) {
    const fs::path path = target;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const std::string start = path.filename().string() + kPartialMark;
    std::vector<fs::path> found;
    std::error_code code;
    for (auto it = fs::directory_iterator(folder, code); !code && it != fs::directory_iterator();
         it.increment(code)) {
        if (is_temporary(it->path().filename().string(), start)) found.push_back(it->path());
    }
    for (const fs::path& leftover : found) {
        const int fd =
            ::open(leftover.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0) continue;
        struct stat status {};
        if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
            ::flock(fd, LOCK_EX | LOCK_NB) == 0) {
            ::unlink(leftover.c_str());
        }
        ::close(fd);
    }
}

// Resolves links at the end of `path`, also where the target does not exist yet.
std::string follow_links(const std::string& path) {
    fs::path target = path;
    std::error_code code;
    for (int i = 0; i < kMostLinks && fs::is_symlink(target, code); ++i) {
        const fs::path next = fs::read_symlink(target, code);
        if (code) break;
        target = target.parent_path() / next;  // just `next` if it is absolute
        // /dev/stdout: an open file of this process, which a rename would not reach.
        if (target.string().starts_with("/proc/")) refuse_device(path);
    }
    return target.string();
}

}  // namespace

OutputFile::OutputFile(const std::string& path, std::optional<unsigned> mode)
    : path_(path), target_(follow_links(path)) {
    struct stat status {};
    const bool replaces = ::stat(path.c_str(), &status) == 0;
    if (replaces && S_ISDIR(status.st_mode)) {
        throw Error::input({.file = path,
                            .problem = "is a directory, not a file",
                            .remedy = "give a file name for the output"});
    }
    // Renaming over a device or a pipe would replace it.
    if (replaces && !S_ISREG(status.st_mode)) refuse_device(path);
    buffer_.reserve(kBuffer);
    remove_leftovers(target_);
    if (!replaces) {
        make_temporary(mode.value_or(kUsual));
        return;
    }
    const mode_t kept = status.st_mode & mode.value_or(kPermissions);
    make_temporary(kept & kUsual);  // never more than it will have
    // Some file systems have no permissions to set.
    if (::fchmod(fd_, kept) != 0 && errno != EPERM && errno != ENOTSUP) {
        const int code = errno;
        discard();
        fail("cannot get the permissions of the file that it replaces", code);
    }
}

void OutputFile::make_temporary(unsigned mode) {
    const std::string name = target_ + kPartialMark + std::to_string(::getpid());
    for (int i = 1; i <= kMostNames; ++i) {
        temporary_ = i == 1 ? name : name + "." + std::to_string(i);
        const int fd =
            ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno == EEXIST) continue;  // not ours: a link, a leftover, or a file in use
        if (fd < 0) fail("cannot be created", errno);
        // Another process may be removing leftovers at this very moment.
        struct stat status {};
        const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (locked && ::fstat(fd, &status) == 0 && status.st_nlink > 0) {
            fd_ = fd;
            return;
        }
        ::close(fd);
    }
    fail("cannot be created", EEXIST);
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() {
    if (fd_ < 0) return;  // committed
    ::close(fd_);
    ::unlink(temporary_.c_str());
    fd_ = -1;
}

void OutputFile::fail(const char* action, int code) {
    throw Error::input(
        {.file = path_,
         .problem = std::string(action) + ": " + std::strerror(code),
         .remedy = code == ENOSPC || code == EDQUOT
                       ? "free some space; the partial file was removed"
                   : code == EFBIG ? "raise the limit on the size of a file (ulimit -f)"
                   : code == EMFILE || code == ENFILE ? remedy_of_open(code)
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
    // Rename before close, which releases the lock; sync() has reported what close() would.
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
        fail("cannot be renamed into place", errno);  // the destructor removes it
    }
    ::close(fd_);
    fd_ = -1;
}

void sync_path(const std::string& path) {
    const auto failed = [&](const char* action, int code) {
        throw Error::input({.file = path,
                            .problem = std::string(action) + ": " + std::strerror(code),
                            .remedy = "check the disk and the folder's permissions"});
    };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) failed("cannot be opened", errno);
    const int result = ::fsync(fd);
    const int code = errno;
    ::close(fd);
    // Some file systems do not support fsync of a folder.
    if (result != 0 && code != EINVAL && code != EROFS) failed("cannot be synced", code);
}

}  // namespace mr
