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

// Whether the open file still has that name.
bool same_file(int fd, const std::string& path) {
    struct stat ours {
    }, there{};
    return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
           ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

}  // namespace

RunFolder::RunFolder(const std::string& path, bool is_new) : path_(path) {
    try {
        for (int tries = 0; fd_ < 0 && tries < kMostTries; ++tries) {
            if (is_new) make_folders();
            lock();
        }
        if (fd_ < 0) {
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

// Leaves fd_ at -1 if the folder or the lock has been removed meanwhile.
void RunFolder::lock() {
    const std::string path = (fs::path(path_) / kLockName).string();
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    const bool made = fd >= 0;
    if (!made && errno == EEXIST) {
        fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    }
    if (fd < 0) {
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
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ::close(fd);
        throw Error::input({.file = path_,
                            .problem = "another process is training here",
                            .remedy = "wait for it, or give another folder"});
    }
    if (!same_file(fd, path)) {
        ::close(fd);
        return;
    }
    fd_ = fd;
    made_lock_ = made;
}

void RunFolder::check_new() const {
    std::vector<std::string> names;
    std::error_code code;
    for (auto it = fs::directory_iterator(path_, code); !code && it != fs::directory_iterator();
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
    if (!Checkpoints(path_).steps().empty()) {
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
    if (!keep_ && made_lock_) ::unlink((fs::path(path_) / kLockName).c_str());
    if (!keep_) {  // only if empty
        for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
            if (::rmdir(folder->c_str()) != 0) break;
        }
    }
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

}  // namespace mr::train
