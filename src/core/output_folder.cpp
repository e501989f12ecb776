#include "core/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/output_file.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOld = ".millrace-old.";  // like kPartialMark

fs::path named(const fs::path& path) {
    fs::path out = fs::absolute(path).lexically_normal();
    if (!out.has_filename()) out = out.parent_path();  // "data/"
    return out;
}

// A descriptor that holds the lock of a folder; -1: another process holds it.
int lock_folder(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    ::close(fd);
    return -1;
}

// Folders beside `target` named after it with `mark` and a process that is gone. A process in
// another container seems to be gone, but the folder it is filling is locked.
std::vector<fs::path> leftovers(const fs::path& target, const char* mark) {
    std::vector<fs::path> out;
    const std::string start = target.filename().string() + mark;
    std::error_code code;
    for (auto it = fs::directory_iterator(target.parent_path(), code);
         !code && it != fs::directory_iterator(); it.increment(code)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(start)) continue;
        const std::string_view digits = std::string_view(name).substr(start.size());
        int process = 0;
        const auto [end, bad] =
            std::from_chars(digits.data(), digits.data() + digits.size(), process);
        if (bad != std::errc{} || end != digits.data() + digits.size() || process <= 0) continue;
        if (::kill(process, 0) == 0 || errno != ESRCH) continue;
        const int lock = lock_folder(it->path());
        if (lock < 0) continue;
        ::close(lock);
        out.push_back(it->path());
    }
    return out;
}

}  // namespace

PartialFolder::PartialFolder(fs::path path, const fs::path& target) : path_(std::move(path)) {
    std::error_code code;
    fs::remove_all(path_, code);
    fs::create_directories(path_.parent_path(), code);
    // It must be newly made: an existing link would lead into another folder.
    if (!code && fs::create_directory(path_, code)) {
        lock_ = lock_folder(path_);
        return;
    }
    if (!code) code = std::make_error_code(std::errc::file_exists);
    throw Error::input({.file = target.string(),
                        .problem = "cannot be made: " + code.message(),
                        .remedy = "check the disk and the folder's permissions"});
}

PartialFolder::~PartialFolder() {
    std::error_code ignored;
    if (!placed_) fs::remove_all(path_, ignored);
    if (lock_ >= 0) ::close(lock_);
}

void PartialFolder::put(const fs::path& target) {
    std::error_code code;
    fs::rename(path_, target, code);
    placed_ = !code;
    if (placed_) return;
    throw Error::input({.file = target.string(),
                        .problem = "cannot be moved to its place: " + code.message(),
                        .remedy = "check the disk and the folder's permissions"});
}

bool exchange_folders([[maybe_unused]] const fs::path& a, [[maybe_unused]] const fs::path& b) {
#ifdef RENAME_EXCHANGE
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
    return false;
#endif
}

void remove_partial_folders(const fs::path& target) {
    std::error_code ignored;
    for (const fs::path& path : leftovers(target, kPartialMark)) fs::remove_all(path, ignored);
}

fs::path partial_name(const fs::path& target) {
    fs::path out = target;
    return out += fmt::format("{}{}", kPartialMark, ::getpid());
}

std::string moved_away(const fs::path& path) {
    const std::vector<fs::path> old = leftovers(named(path), kOld);
    return old.empty() ? "" : old.front().string();
}

OutputFolder::OutputFolder(const std::string& path, Foreign foreign, bool force)
    : target_(named(path)), foreign_(std::move(foreign)), force_(force) {
    clear_leftovers();
    check();
    partial_.emplace(partial_name(target_), target_);
}

void OutputFolder::commit() {
    check();
    sync_path(partial_->path().string());
    if (has_something()) {
        replace();
    } else {
        partial_->put(target_);
    }
    sync_path(target_.parent_path().string());
    partial_.reset();  // with the old content
}

// Swaps the two atomically if the file system can. Otherwise there is a moment without any: the
// next OutputFolder moves the old one back.
void OutputFolder::replace() {
    if (exchange_folders(partial_->path(), target_)) return;
    fs::path old = target_;
    old += fmt::format("{}{}", kOld, ::getpid());
    std::error_code code;
    fs::rename(target_, old, code);
    if (code) fail("cannot be moved away: " + code.message());
    std::error_code ignored;
    try {
        partial_->put(target_);
    } catch (...) {
        fs::rename(old, target_, ignored);
        throw;
    }
    fs::remove_all(old, ignored);
}

bool OutputFolder::has_something() const {
    std::error_code code;
    return fs::exists(target_, code) &&
           !(fs::is_directory(target_, code) && fs::is_empty(target_, code));
}

void OutputFolder::check() const {
    if (!has_something()) return;
    std::error_code code;
    if (!fs::is_directory(target_, code)) fail("already exists, and is not a folder");
    if (const std::string what = foreign_(target_); !what.empty()) {
        fail(fmt::format("already exists, and {}", what));
    }
    if (!force_) fail("already exists", "--force replaces it");
}

void OutputFolder::clear_leftovers() const {
    std::error_code ignored;
    remove_partial_folders(target_);
    if (fs::exists(target_, ignored)) {  // the folder that it replaced
        for (const fs::path& path : leftovers(target_, kOld)) fs::remove_all(path, ignored);
        return;
    }
    if (const std::string old = moved_away(target_); !old.empty()) {
        fs::rename(old, target_, ignored);
    }
}

void OutputFolder::fail(std::string problem, std::string remedy) const {
    throw Error::input(
        {.file = target_.string(), .problem = std::move(problem), .remedy = std::move(remedy)});
}

}  // namespace mr
