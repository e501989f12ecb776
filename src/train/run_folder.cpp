#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/error.h"
#include "core/output_file.h"
#include "model/io/source.h"
#include "train/checkpoint.h"
#include "train/shards.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "lock";
constexpr int kMostTries = 100;  // against others that make and remove the same folder

bool written_by_runs(const std::string& name) {
    const auto is = [&](const std::string& wanted) {
        return name == wanted || name.starts_with(wanted + kPartialMark);
    };
    return name == kLockName || name == model::kCheckpoints || is(kMetricsName) || is(kReportName);
}

bool same_file(const struct stat& a, const struct stat& b) {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

}  // namespace

RunFolder::RunFolder(const std::string& path, bool is_new) : path_(path) {
    try {
        for (int tries = 0; lock_ < 0 && tries < kMostTries; ++tries) {
            if (is_new) make_folders();
            lock();
        }
        if (lock_ < 0) {
            throw Error::input({.file = path_,
                                .problem = "this folder does not stay: it was made, and was gone",
                                .remedy = "give a folder on a disk that can be written, and let no "
                                          "other process remove it"});
        }
        if (is_new) check_new();
    } catch (...) {
        leave();
        throw;
    }
}

RunFolder::~RunFolder() { leave(); }

void RunFolder::make_folders() {
    std::error_code code;
    std::vector<fs::path> missing;
    fs::path at = fs::absolute(path_, code).lexically_normal();
    if (!at.has_filename()) at = at.parent_path();  // "runs/"
    for (; !at.empty() && !fs::exists(fs::symlink_status(at, code)); at = at.parent_path()) {
        missing.push_back(at);
    }
    for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
        if (fs::create_directory(*folder, code)) made_.push_back(*folder);
        // Another process has just removed the parent folder: start again.
        if (code == std::errc::no_such_file_or_directory) return;
        if (code) break;
    }
    if (!code && fs::is_directory(path_, code)) return;
    throw Error::input(
        {.file = path_,
         .problem = code ? fmt::format("cannot be made: {}", code.message()) : "is not a folder",
         .remedy = "give --out a folder that can be written"});
}

// Leaves lock_ at -1 if the folder or the lock has been removed meanwhile.
void RunFolder::lock() {
    unlock();
    folder_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_ < 0) {
        if (errno == ENOENT) return;
        throw Error::input({.file = path_,
                            .problem = fmt::format("cannot be opened: {}", std::strerror(errno)),
                            .remedy = "a run needs a folder that can be read and written"});
    }
    at_ = fmt::format("/proc/self/fd/{}", folder_);
    struct stat ours {
    }, there{};
    if (::fstat(folder_, &ours) != 0 || ::stat(at_.c_str(), &there) != 0 ||
        !same_file(ours, there)) {
        at_ = path_;
    }
    const std::string path = (fs::path(path_) / kLockName).string();
    lock_ = ::openat(folder_, kLockName, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    made_lock_ = lock_ >= 0;
    if (!made_lock_ && errno == EEXIST) {
        lock_ = ::openat(folder_, kLockName, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    }
    if (lock_ < 0) {
        if (errno == ENOENT) return;
        if (errno == ELOOP) {
            throw Error::input({.file = path,
                                .problem = "is a link, which no run makes",
                                .remedy = "remove the link"});
        }
        throw Error::input({.file = path,
                            .problem = fmt::format("cannot be made: {}", std::strerror(errno)),
                            .remedy = "a run needs a folder that can be written"});
    }
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
        made_lock_ = false;  // by now it is another's
        throw Error::input({.file = path_,
                            .problem = "another process is training here",
                            .remedy = "wait for it, or give another folder"});
    }
    if (still_there() && name() == path_) return;
    made_lock_ = false;
    unlock();
}

void RunFolder::unlock() {
    if (lock_ >= 0) ::close(lock_);
    if (folder_ >= 0) ::close(folder_);
    lock_ = folder_ = -1;
}

// Whether the lock that is held is the folder's lock. If not, errno says why: 0 if it is another.
bool RunFolder::still_there() const {
    struct stat ours {
    }, there{};
    if (::fstat(lock_, &ours) != 0) return false;
    if (::fstatat(folder_, kLockName, &there, AT_SYMLINK_NOFOLLOW) != 0) return false;
    errno = 0;
    return same_file(ours, there);
}

std::string RunFolder::name() const {
    struct stat ours {
    }, there{};
    const bool opened = ::fstat(folder_, &ours) == 0;
    if (opened && ::stat(path_.c_str(), &there) == 0 && same_file(ours, there)) return path_;
    std::error_code code;
    const fs::path now = fs::read_symlink(fmt::format("/proc/self/fd/{}", folder_), code);
    return code ? fmt::format("{} (moved)", path_) : now.string();
}

// Makes a lock file that was removed from the folder. False: the folder was removed with it.
bool RunFolder::relock() {
    if (::faccessat(folder_, model::kCheckpoints, F_OK, 0) != 0) return false;
    const int made = ::openat(folder_, kLockName, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (made < 0) {
        if (errno == ENOENT || errno == EEXIST) return false;
        throw Error::input({.file = (fs::path(path_) / kLockName).string(),
                            .problem = fmt::format("was removed, and cannot be made again: {}",
                                                   std::strerror(errno)),
                            .remedy = "check the disk and the folder's permissions"});
    }
    if (::flock(made, LOCK_EX | LOCK_NB) != 0) {  // another process has begun here
        ::close(made);
        return false;
    }
    ::close(lock_);
    lock_ = made;
    return still_there();
}

void RunFolder::require_own() {
    const bool gone = !still_there() && errno == ENOENT;
    if (gone ? relock() : still_there()) {
        if (at_ != path_ || name() == path_) return;
        throw LostFolder(ErrorKind::input,
                         {.file = path_,
                          .problem = "was moved while the run writes to it, and without /proc the "
                                     "run cannot follow",
                          .remedy = "resume it from where it is now"});
    }
    struct stat lock {};
    if (::fstatat(folder_, kLockName, &lock, AT_SYMLINK_NOFOLLOW) == 0) {
        throw LostFolder(
            ErrorKind::input,
            {.file = (fs::path(name()) / kLockName).string(),
             .problem = "was replaced: another run may write to this folder, so this one stops",
             .remedy = "what it saved is there; start one run at a time in a folder"});
    }
    throw LostFolder(ErrorKind::input,
                     {.file = path_,
                      .problem = "was removed while the run writes to it: nothing can be saved",
                      .remedy = "start again, and stop a run before its folder is removed"});
}

void RunFolder::check_new() const {
    std::vector<std::string> names;
    std::error_code code;
    for (auto it = fs::directory_iterator(at_, code); !code && it != fs::directory_iterator();
         it.increment(code)) {
        const std::string name = it->path().filename().string();
        // Hidden files belong to the system or an editor; a run does not touch them.
        if (!name.starts_with('.') && !(made_lock_ && name == kLockName)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    if (std::find(names.begin(), names.end(), kDataIndexName) != names.end()) {
        throw Error::input({.file = path_,
                            .problem = "is a folder of packed data",
                            .remedy = "give --out another folder"});
    }
    // Without a lock file no run was here, whatever the names are.
    const auto foreign = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return made_lock_ || !written_by_runs(name);
    });
    if (!Checkpoints(at_).steps().empty()) {
        throw Error::usage(
            {.file = path_,
             .problem = "there is a run here already",
             .remedy = fmt::format("resume it with --resume {}, or give another folder", path_)});
    }
    if (foreign != names.end()) {
        throw Error::input({.file = path_,
                            .problem = fmt::format("has '{}', which no run wrote", *foreign),
                            .remedy = "give --out a new folder, or an empty one"});
    }
}

// Under the lock until the end: a process that waits for the lock finds that the file has changed,
// and starts again.
void RunFolder::leave() {
    if (!keep_ && made_lock_ && still_there()) ::unlinkat(folder_, kLockName, 0);
    if (!keep_) {  // only if empty
        for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
            if (::rmdir(folder->c_str()) != 0) break;
        }
    }
    unlock();
}

}  // namespace mr::train
