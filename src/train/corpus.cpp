#include "train/corpus.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "core/error.h"

namespace mr::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLookedAt = 4096;  // bytes checked for signs that a file is not text

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> files_under(const std::string& folder) {
    std::vector<std::string> out;
    try {
        for (auto it = fs::recursive_directory_iterator(folder); it != fs::end(it); ++it) {
            if (hidden(it->path())) {
                if (it->is_directory()) it.disable_recursion_pending();
            } else if (it->is_regular_file()) {
                out.push_back(it->path().string());
            }
        }
    } catch (const fs::filesystem_error& error) {
        throw Error::input({.file = folder,
                            .problem = "cannot be read: " + error.code().message(),
                            .remedy = "check the folder and its permissions"});
    }
    if (out.empty()) {
        throw Error::input({.file = folder,
                            .problem = "the folder has no files",
                            .remedy = "give files with text"});
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<std::string> matches(const std::string& pattern) {
    glob_t found{};
    std::vector<std::string> out;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {  // sorted
        out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    ::globfree(&found);
    return out;
}

}  // namespace

std::vector<std::string> corpus_files(const std::vector<std::string>& arguments) {
    std::vector<std::string> out;
    std::set<std::string> seen;
    const auto add = [&](const std::string& path) {
        if (seen.insert(fs::path(path).lexically_normal().string()).second) out.push_back(path);
    };
    for (const std::string& argument : arguments) {
        std::vector<std::string> named = {argument};
        std::error_code code;
        if (!fs::exists(argument, code)) {
            if (argument.find_first_of("*?[") != std::string::npos) named = matches(argument);
            if (named.empty()) {
                throw Error::input({.file = argument,
                                    .problem = "no file matches it",
                                    .remedy = "check the path"});
            }
        }
        for (const std::string& path : named) {
            if (fs::is_directory(path, code)) {
                for (const std::string& file : files_under(path)) add(file);
            } else {
                add(path);
            }
        }
    }
    return out;
}

void require_text(std::string_view text, const std::string& name) {
    if (text.substr(0, kLookedAt).find('\0') == std::string_view::npos) return;
    throw Error::input(
        {.file = name,
         .problem = "is not text: it has zero bytes",
         .remedy = "unpack it, if it is compressed, convert it to UTF-8, or leave it out"});
}

CorpusText::CorpusText(const std::string& path) {
    std::error_code code;
    if (fs::is_regular_file(path, code) && fs::file_size(path, code) == 0 && !code) return;
    file_ = MappedFile(path);
    require_text(text(), path);
}

std::uint64_t corpus_bytes(const std::vector<std::string>& files) {
    std::uint64_t bytes = 0;
    for (const std::string& path : files) {
        std::error_code code;
        const std::uint64_t size = fs::file_size(path, code);
        if (!code) bytes += size;
    }
    return bytes;
}

bool Documents::next(std::string_view& document) {
    while (!rest_.empty()) {
        const std::size_t end =
            separator_.empty() ? std::string_view::npos : rest_.find(separator_);
        document = rest_.substr(0, end);
        rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + separator_.size());
        if (!separator_.empty()) {
            document.remove_prefix(
                std::min(document.find_first_not_of(" \t\r\n"), document.size()));
            if (document.ends_with('\n')) document.remove_suffix(1);
        }
        if (!document.empty()) return true;
    }
    return false;
}

}  // namespace mr::train
