#include "train/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial.";  // and the process
constexpr const char* kOld = ".old.";

}  // namespace

OutputFolder::OutputFolder(const std::string& path, std::string mark, bool force)
    : target_(fs::absolute(path).lexically_normal()), mark_(std::move(mark)), force_(force) {
    if (!target_.has_filename()) target_ = target_.parent_path();  // "data/"
    check();
    remove_leftovers();
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
    std::error_code code;
    fs::path old;
    if (has_something()) {
        old = target_;
        old += fmt::format("{}{}", kOld, ::getpid());
        fs::rename(target_, old, code);
        if (code) fail("cannot be moved away: " + code.message());
    }
    fs::rename(temporary_, target_, code);
    if (code) {
        std::error_code ignored;
        if (!old.empty()) fs::rename(old, target_, ignored);
        fail("cannot be renamed into place: " + code.message());
    }
    committed_ = true;
    sync_path(target_.parent_path().string());
    if (!old.empty()) fs::remove_all(old, code);
}

bool OutputFolder::has_something() const {
    std::error_code code;
    return fs::exists(target_, code) &&
           !(fs::is_directory(target_, code) && fs::is_empty(target_, code));
}

void OutputFolder::check() const {
    if (!has_something()) return;
    std::error_code code;
    if (!fs::exists(target_ / mark_, code)) {
        fail(fmt::format("is there already, and has no {}", mark_), "give another --out");
    }
    if (!force_) fail("is there already", "--force replaces it");
}

// Only those whose process is gone. An old folder that was moved away and never replaced is kept:
// it may be all there is.
void OutputFolder::remove_leftovers() const {
    const std::string start = target_.filename().string() + kPartial;
    std::error_code code;
    for (auto it = fs::directory_iterator(target_.parent_path(), code);
         !code && it != fs::directory_iterator(); it.increment(code)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(start)) continue;
        const std::string_view digits = std::string_view(name).substr(start.size());
        int process = 0;
        const auto [end, bad] =
            std::from_chars(digits.data(), digits.data() + digits.size(), process);
        if (bad != std::errc{} || end != digits.data() + digits.size() || process <= 0) continue;
        if (::kill(process, 0) == 0 || errno != ESRCH) continue;
        std::error_code ignored;
        fs::remove_all(it->path(), ignored);
    }
}

void OutputFolder::fail(std::string problem, std::string remedy) const {
    throw Error::input(
        {.file = target_.string(), .problem = std::move(problem), .remedy = std::move(remedy)});
}

}  // namespace mr::train
