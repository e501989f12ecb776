#include "cli/model_name.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/cache.h"
#include "hub/reference.h"

namespace mr::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kEnding = ".gguf";

// Where bundled models may lie: beside the installed program, in the Python package that this
// module belongs to, or in the source tree.
std::vector<fs::path> places() {
    std::vector<fs::path> out;
    std::error_code ignored;
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
    if (!program.empty()) out.push_back(program.parent_path() / "../share/millrace/models");
    Dl_info module{};
    if (::dladdr(reinterpret_cast<const void*>(&named_model), &module) != 0 &&
        fs::path(module.dli_fname).extension() == ".so") {
        out.push_back(fs::path(module.dli_fname).parent_path() / "models");
    }
    out.emplace_back(MR_SOURCE_MODELS);
    return out;
}

// Empty: not found.
std::string bundled(const std::string& file) {
    std::error_code ignored;
    for (const fs::path& place : places()) {
        if (fs::exists(place / file, ignored)) return (place / file).lexically_normal().string();
    }
    return {};
}

std::set<std::string> bundled_names() {
    std::set<std::string> out;
    for (const fs::path& place : places()) {
        std::error_code ignored;
        for (fs::directory_iterator at(place, ignored), end; !ignored && at != end;
             at.increment(ignored)) {
            if (at->path().extension() == kEnding) out.insert(at->path().stem().string());
        }
    }
    return out;
}

// `option`: the one that named it; empty: none, and the error begins with the name itself.
[[noreturn]] void refuse(const std::string& given, const std::string& option, std::string problem,
                         std::string remedy) {
    throw Error::input({.file = option.empty() ? given : std::string(),
                        .field = option,
                        .value = option.empty() ? std::string() : given,
                        .problem = std::move(problem),
                        .remedy = std::move(remedy)});
}

// The name of the model in the address of its page, or of a file there; else empty.
std::string name_in_address(std::string_view address) {
    const std::size_t host = address.find("://");
    const std::size_t slash = host == std::string_view::npos ? host : address.find('/', host + 3);
    const auto read = hub::read_address(address, address.substr(0, slash));
    return read ? read->model.text() : std::string();
}

// The path of a model given by its name on a hub, if it was downloaded; other names as they are.
// Names that can only be one of a hub, and addresses, are refused with what downloads them.
std::string downloaded(const std::string& given, const char* option) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(given, ignored))) return given;
    if (const std::string name = name_in_address(given);
        !name.empty() || given.find("://") != std::string::npos) {
        refuse(given, option, "is a URL",
               fmt::format("'millrace pull {}' downloads a model of a hub, and then {} is its name "
                           "here",
                           name.empty() ? "OWNER/NAME" : name, name.empty() ? "that" : name));
    }
    const auto name = hub::read_reference(given);
    if (!name) return given;
    if (auto found = hub::find_downloaded(*name)) return *found;
    // It may be the path of a file that has gone. "Qwen2.5-0.5B" has no file's ending.
    const std::string ending = fs::path(name->id()).extension().string();
    const bool file = !ending.empty() && ending.find_first_of("0123456789") == std::string::npos;
    if (name->what.empty() && (file || fs::exists(name->owner, ignored))) return given;
    refuse(given, option, "no file or folder has this name, and no model that was downloaded",
           fmt::format("'millrace pull {}' downloads it", name->text()));
}

}  // namespace

std::string named_model(const std::string& given, const char* option) {
    if (given.find_first_of("/:") != std::string::npos) {
        return downloaded(given, option);
    }
    std::string found = bundled(given + std::string(kEnding));
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(given, ignored))) {
        return found.empty() ? given : "./" + given;
    }
    if (!found.empty()) return found;
    const std::set<std::string> names = bundled_names();
    std::string remedy = "check the path";
    if (given.find(' ') != std::string::npos) {
        remedy += "; a prompt is given with -p";
    } else if (const std::string near = nearest(given, {names.begin(), names.end()});
               !near.empty()) {
        remedy = fmt::format("did you mean {}?", near);
    } else if (!names.empty()) {
        remedy += fmt::format(", or name a bundled model: {}", fmt::join(names, ", "));
    }
    refuse(given, option, "no file, folder or bundled model has this name", std::move(remedy));
}

std::string model_source(const SharedOptions& options) {
    if (!options.model.empty()) return named_model(options.model);
    if (const char* model = std::getenv("MILLRACE_MODEL"); model && *model) {
        return named_model(model);
    }
    if (std::string found = bundled(MR_BUNDLED_MODEL); !found.empty()) return found;
    throw Error::usage({.field = "MODEL",
                        .problem = "none was given, and the bundled model (" MR_BUNDLED_MODEL
                                   ") is not beside the program",
                        .remedy = "name a GGUF file, a Hugging Face folder or a llama2.c .bin, or "
                                  "set MILLRACE_MODEL"});
}

std::vector<std::string> bundled_models() {
    const std::set<std::string> names = bundled_names();
    return {names.begin(), names.end()};
}

std::string tokenizer_source(const std::string& given) {
    return given.empty() ? given : named_model(given, "--tokenizer");
}

std::string hides_bundled_model(const std::string& file) {
    if (!file.starts_with("./")) return {};
    const std::string name = file.substr(2, file.find('/', 2) - 2);
    const std::string found = name.empty() ? name : bundled(name + std::string(kEnding));
    if (found.empty()) return {};
    return fmt::format("./{} was taken for the path, the bundled model of that name is {}", name,
                       found);
}

}  // namespace mr::cli
