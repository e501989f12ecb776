#include "hub/cache.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"
#include "hub/choice.h"

namespace mr::hub {

namespace fs = std::filesystem;

std::string with_home(const std::string& path) {
    const std::string home = variable("HOME");
    const bool short_form = path == "~" || path.starts_with("~/");
    return home.empty() || !short_form ? path : home + path.substr(1);
}

namespace {

// $XDG_CACHE_HOME or ~/.cache; empty if there is no home.
fs::path user_cache() {
    if (const std::string given = variable("XDG_CACHE_HOME"); !given.empty()) {
        return with_home(given);
    }
    const std::string home = variable("HOME");
    return home.empty() ? fs::path() : fs::path(home) / ".cache";
}

// The files below a folder, by their paths there. A link that leads nowhere is no file.
std::vector<std::string> files_below(const fs::path& folder) {
    std::vector<std::string> out;
    std::error_code code;
    for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end;
         at.increment(code)) {
        std::error_code gone;
        if (fs::is_regular_file(at->path(), gone)) {
            out.push_back(at->path().lexically_relative(folder).string());
        }
    }
    return out;
}

// The model in a folder with these files: the folder itself, or a file. Empty if it has none or a
// part is missing.
std::optional<std::string> model_in(const Reference& wanted, const fs::path& folder) {
    try {
        const Choice choice = choose(wanted, files_below(folder));
        if (choice.kind == Kind::file && fs::path(wanted.what).extension() != ".safetensors") {
            return std::nullopt;
        }
        if (choice.kind != Kind::folder) return (folder / choice.files.front()).string();
        if (choice.sharded) {
            const std::string index = (folder / kIndexName).string();
            for (const std::string& shard : shards_of_index(read_text_file(index), index)) {
                std::error_code gone;
                if (!fs::is_regular_file(folder / shard, gone)) return std::nullopt;
            }
        }
        return folder.string();
    } catch (const Error&) {
        return std::nullopt;
    }
}

// The commit that refs/main names comes first, then the newest.
std::vector<fs::path> snapshots_of(const fs::path& repository) {
    std::vector<std::pair<fs::file_time_type, fs::path>> found;
    std::error_code code;
    for (fs::directory_iterator at(repository / "snapshots", code), end; !code && at != end;
         at.increment(code)) {
        std::error_code gone;
        const auto time = fs::last_write_time(at->path(), gone);
        if (is_commit(at->path().filename().string())) found.emplace_back(time, at->path());
    }
    std::sort(found.rbegin(), found.rend());
    std::string main;
    try {
        main = read_text_file((repository / "refs" / "main").string(), 4096);
        while (!main.empty() && (main.back() == '\n' || main.back() == ' ')) main.pop_back();
    } catch (const Error&) {  // there is none
    }
    std::vector<fs::path> out;
    for (auto& [time, path] : found) out.push_back(std::move(path));
    std::stable_partition(out.begin(), out.end(),
                          [&](const fs::path& path) { return path.filename() == main; });
    return out;
}

std::optional<std::string> find_in_cache(const Reference& wanted, const fs::path& cache) {
    for (const fs::path& snapshot : snapshots_of(cache / folder_name(wanted))) {
        if (auto found = model_in(wanted, snapshot)) return found;
    }
    return std::nullopt;
}

// How llama.cpp begins the names of a repository's files, of which it lists the tags in
// manifest=OWNER=NAME=TAG.json.
std::string flat_prefix(const std::string& owner, const std::string& name) {
    return owner + "_" + name + "_";
}

// OWNER_NAME_FILE.gguf, as llama.cpp named files until it took the other cache.
std::optional<std::string> find_flat(const Reference& wanted, const fs::path& folder) {
    const std::string prefix = flat_prefix(wanted.owner, wanted.name);
    std::vector<std::string> longer;  // beginnings of other models that begin with ours
    std::vector<std::string> names;
    for (const std::string& file : files_below(folder)) {
        constexpr std::string_view kManifest = "manifest=";
        if (file.starts_with(kManifest)) {
            const std::string id = file.substr(kManifest.size());
            const std::size_t first = id.find('='), second = id.find('=', first + 1);
            if (second == std::string::npos) continue;
            const std::string other =
                flat_prefix(id.substr(0, first), id.substr(first + 1, second - first - 1));
            if (other.size() > prefix.size() && other.starts_with(prefix)) longer.push_back(other);
        } else if (file.starts_with(prefix)) {
            names.push_back(file);
        }
    }
    std::vector<std::string> ours;
    for (const std::string& name : names) {
        const bool others = std::ranges::any_of(
            longer, [&](const std::string& other) { return name.starts_with(other); });
        if (!others) ours.push_back(name.substr(prefix.size()));
    }
    try {
        const Choice choice = choose(wanted, ours);
        if (choice.kind != Kind::gguf) return std::nullopt;
        return (folder / (prefix + choice.files.front())).string();
    } catch (const Error&) {
        return std::nullopt;
    }
}

}  // namespace

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

fs::path home_folder() {
    if (const std::string given = variable("HF_HOME"); !given.empty()) return with_home(given);
    const fs::path cache = user_cache();
    return cache.empty() ? cache : cache / "huggingface";
}

fs::path cache_folder() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
        if (const std::string given = variable(name); !given.empty()) return with_home(given);
    }
    const fs::path home = home_folder();
    return home.empty() ? home : home / "hub";
}

std::string folder_name(const Reference& model) {
    return "models--" + model.owner + "--" + model.name;
}

std::string name_in_cache(const fs::path& path) {
    fs::path at = path;
    while (at.has_relative_path() && at.parent_path().filename() != "snapshots") {
        at = at.parent_path();
    }
    const std::string folder = at.parent_path().parent_path().filename().string();
    constexpr std::string_view kModels = "models--";
    if (!folder.starts_with(kModels) || !is_commit(at.filename().string())) return {};
    std::string name = folder.substr(kModels.size());
    if (const std::size_t mark = name.find("--"); mark != std::string::npos) {
        name.replace(mark, 2, "/");
    }
    return name;
}

bool is_commit(std::string_view text) {
    return text.size() >= 7 && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

std::optional<std::string> find_downloaded(const Reference& wanted) {
    std::vector<fs::path> caches;
    if (fs::path cache = cache_folder(); !cache.empty()) caches.push_back(std::move(cache));
    const std::string llama = variable("LLAMA_CACHE");
    if (!llama.empty()) caches.push_back(with_home(llama));
    for (const fs::path& cache : caches) {
        if (auto found = find_in_cache(wanted, cache)) return found;
    }
    const fs::path user = user_cache();
    if (llama.empty() && user.empty()) return std::nullopt;
    return find_flat(wanted, llama.empty() ? user / "llama.cpp" : fs::path(with_home(llama)));
}

}  // namespace mr::hub
