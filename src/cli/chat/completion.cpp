#include "cli/chat/completion.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "cli/chat/settings.h"
#include "cli/chat/slash.h"
#include "cli/model_name.h"
#include "core/printable.h"
#include "hub/cache.h"

namespace mr::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> beginning_with(std::string_view begin, std::vector<std::string> words) {
    std::erase_if(words, [&](const std::string& word) { return !word.starts_with(begin); });
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
}

// Files and folders, the latter with a slash; hidden ones only after a dot.
std::vector<std::string> paths(std::string_view begin) {
    const std::size_t slash = begin.rfind('/');
    const std::string folder(begin.substr(0, slash == std::string_view::npos ? 0 : slash + 1));
    const std::string_view name = begin.substr(folder.size());
    std::vector<std::string> found;
    std::error_code error;
    for (fs::directory_iterator at(folder.empty() ? "." : hub::with_home(folder), error), end;
         !error && at != end; at.increment(error)) {
        const std::string entry = at->path().filename().string();
        if (!entry.starts_with(name) || (name.empty() && entry.starts_with('.'))) continue;
        if (printable(entry) != entry) continue;  // a name that a terminal would obey
        std::error_code ignored;
        found.push_back(folder + entry + (at->is_directory(ignored) ? "/" : ""));
    }
    return found;
}

}  // namespace

Completions complete_command(std::string_view line) {
    if (!line.starts_with('/') || line.starts_with("//")) return {};
    const std::size_t word = line.find(' ');
    if (word == std::string_view::npos) return {0, beginning_with(line, slash_commands())};
    const std::string_view command = line.substr(0, word);
    const std::size_t begin = std::min(line.find_first_not_of(' ', word), line.size());
    const std::string_view argument = line.substr(begin);
    if (command == "/set") {
        const std::size_t space = argument.find(' ');
        if (space == std::string_view::npos) {
            return {begin, beginning_with(argument, setting_names())};
        }
        const std::string_view value = argument.substr(space + 1);
        return {begin + space + 1,
                beginning_with(value, setting_values(argument.substr(0, space)))};
    }
    if (command != "/model" && command != "/load" && command != "/save") return {};
    std::vector<std::string> words = paths(argument);
    if (command == "/model") {
        for (std::string& name : bundled_models()) words.push_back(std::move(name));
    }
    return {begin, beginning_with(argument, std::move(words))};
}

}  // namespace mr::cli
