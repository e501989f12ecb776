#include "train/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
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

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial.";  // and the process
constexpr const char* kOld = ".old.";

fs::path named(const fs::path& path) {
    fs::path out = fs::absolute(path).lexically_normal();
    if (!out.has_filename()) out = out.parent_path();  // "data/"
    return out;
}

// Those beside `target` that are named after it with `mark` and a process that is gone.
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
        out.push_back(it->path());
    }
    return out;
}

}  // namespace

std::string moved_away(const fs::path& path) {
    const std::vector<fs::path> old = leftovers(named(path), kOld);
    return old.empty() ? "" : old.front().string();
}

OutputFolder::OutputFolder(const std::string& path, Foreign foreign, bool force)
    : target_(named(path)), foreign_(std::move(foreign)), force_(force) {
    clear_leftovers();
    check();
    temporary_ = target_;
    temporary_ += fmt::format("{}{}", kPartial, ::getpid());
    std::error_code code;
    fs::create_directories(temporary_, code);
    if (code) fail("cannot be made: " + code.message());
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
    check();
    sync_path(temporary_.string());
    if (has_something()) {
        replace();
    } else {
        std::error_code code;
        fs::rename(temporary_, target_, code);
        if (code) fail("cannot be renamed into place: " + code.message());
    }
    committed_ = true;
    sync_path(target_.parent_path().string());
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);  // what was there before
}

// The two change places in one go where the file system can do that. Elsewhere there is a moment
// without any: the next OutputFolder brings back what was moved away.
void OutputFolder::replace() {
#ifdef RENAME_EXCHANGE
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) ==
        0) {
        return;
    }
#endif
    fs::path old = target_;
    old += fmt::format("{}{}", kOld, ::getpid());
    std::error_code code;
    fs::rename(target_, old, code);
    if (code) fail("cannot be moved away: " + code.message());
    fs::rename(temporary_, target_, code);
    std::error_code ignored;
    if (code) {
        fs::rename(old, target_, ignored);
        fail("cannot be renamed into place: " + code.message());
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
    if (!fs::is_directory(target_, code)) fail("is there already, and is no folder");
    if (const std::string what = foreign_(target_); !what.empty()) {
        fail(fmt::format("is there already, and {}", what), "give another --out");
    }
    if (!force_) fail("is there already", "--force replaces it");
}

void OutputFolder::clear_leftovers() const {
    std::error_code ignored;
    for (const fs::path& path : leftovers(target_, kPartial)) fs::remove_all(path, ignored);
    if (fs::exists(target_, ignored)) return;
    if (const std::string old = moved_away(target_); !old.empty()) {
        fs::rename(old, target_, ignored);
    }
}

void OutputFolder::fail(std::string problem, std::string remedy) const {
    throw Error::input(
        {.file = target_.string(), .problem = std::move(problem), .remedy = std::move(remedy)});
}

}  // namespace mr::train
