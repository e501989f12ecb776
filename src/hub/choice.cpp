#include "hub/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "formats/json.h"

namespace mr::hub {
namespace {

constexpr std::string_view kEnding = ".gguf";

// Types that a file's name may have, longest first where one begins another. read: all tensors of
// such files are of types that the engine reads (formats/gguf_types.cpp).
struct TypeName {
    std::string_view name;
    bool read;
};
constexpr TypeName kTypeNames[] = {
    // In the order in which they are taken if none is named.
    {"Q4_K_M", true},   {"Q4_K_S", true},     {"Q8_0", true},      {"Q5_K_M", true},
    {"Q5_K_S", true},   {"Q6_K", true},       {"Q4_0", true},      {"Q4_1", true},
    {"Q5_0", true},     {"Q5_1", true},       {"Q4_K", true},      {"Q5_K", true},
    {"BF16", true},     {"F16", true},        {"F32", true},       {"Q2_K", false},
    {"Q2_K_S", false},  {"Q2_K_L", false},    {"Q3_K", false},     {"Q3_K_S", false},
    {"Q3_K_M", false},  {"Q3_K_L", false},    {"IQ1_S", false},    {"IQ1_M", false},
    {"IQ2_XXS", false}, {"IQ2_XS", false},    {"IQ2_S", false},    {"IQ2_M", false},
    {"IQ3_XXS", false}, {"IQ3_XS", false},    {"IQ3_S", false},    {"IQ3_M", false},
    {"IQ4_XS", false},  {"IQ4_NL", false},    {"TQ1_0", false},    {"TQ2_0", false},
    {"MXFP4", false},   {"MXFP4_MOE", false}, {"Q4_0_4_4", false}, {"Q4_0_4_8", false},
    {"Q4_0_8_8", false}};

// The files that a folder's model is read from, besides the weights.
constexpr std::string_view kFolderFiles[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"};

std::string lowered(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

bool is_word_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// In lower case, with one name for the types that have two: fp16 is f16.
std::string normal(std::string_view text) {
    std::string out = lowered(text);
    for (const char* both : {"fp16", "fp32"}) {
        for (std::size_t at = out.find(both); at != std::string::npos; at = out.find(both, at)) {
            out.erase(at + 1, 1);
        }
    }
    return out;
}

// Whether `type` stands by itself in a name: "a-Q4_K_M" has Q4_K_M, but not Q4_K, and "UD-Q4_K_XL"
// has neither. Upper and lower case are one.
bool has_type(std::string_view name, std::string_view type) {
    const std::string in = normal(name), word = normal(type);
    // A letter, then a digit: "K_M" and "0" are parts of types.
    const std::size_t digit = word.find_first_of("0123456789_.");
    if (digit == 0 || digit == std::string::npos || !is_word_letter(word[digit])) return false;
    for (std::size_t at = in.find(word); at != std::string::npos; at = in.find(word, at + 1)) {
        const std::size_t end = at + word.size();
        const bool begins = at == 0 || !is_word_letter(in[at - 1]);
        const bool ends = end == in.size() || (!is_word_letter(in[end]) && in[end] != '_');
        if (begins && ends) return true;
    }
    return false;
}

// The type in a name, if it is one that the engine does not read; else empty.
std::string_view unread_type(std::string_view name) {
    for (const TypeName& type : kTypeNames) {
        if (!type.read && has_type(name, type.name)) return type.name;
    }
    return {};
}

// A GGUF model: one file, or parts of one, NAME-00001-of-00003.gguf.
struct Group {
    std::string stem;                  // the path without -00001-of-00003 and .gguf
    std::map<int, std::string> parts;  // by number, from 1
    int count = 1;
};

// Sets number and count if the stem ends with -00001-of-00003, and cuts that off.
void cut_part(std::string& stem, int& number, int& count) {
    constexpr std::size_t kTail = 15;  // -00001-of-00003
    if (stem.size() <= kTail) return;
    const std::string_view tail = std::string_view(stem).substr(stem.size() - kTail);
    if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return;
    int first = 0, last = 0;
    const auto read = [](std::string_view digits, int& to) {
        const char* const end = digits.data() + digits.size();
        return std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }) &&
               std::from_chars(digits.data(), end, to).ptr == end;
    };
    if (!read(tail.substr(1, 5), first) || !read(tail.substr(10, 5), last)) return;
    number = first;
    count = last;
    stem.resize(stem.size() - kTail);
}

std::vector<Group> groups_of(const std::vector<std::string>& files) {
    std::map<std::pair<std::string, int>, Group> found;
    for (const std::string& file : files) {
        const std::string name = lowered(file.substr(file.rfind('/') + 1));
        if (!name.ends_with(kEnding)) continue;
        // Parts for pictures, and statistics for quantising: no models.
        if (name.find("mmproj") != std::string::npos || name.find("imatrix") != std::string::npos) {
            continue;
        }
        int number = 1, count = 1;
        std::string stem = file.substr(0, file.size() - kEnding.size());
        cut_part(stem, number, count);
        Group& group = found[{stem, count}];
        group.stem = stem;
        group.count = count;
        group.parts[number] = file;
    }
    std::vector<Group> out;
    for (auto& [key, group] : found) out.push_back(std::move(group));
    return out;
}

[[noreturn]] void refuse(const Reference& wanted, std::string problem, std::string remedy = {}) {
    throw Error::input(
        {.file = wanted.text(), .problem = std::move(problem), .remedy = std::move(remedy)});
}

std::string names_of(const std::vector<Group>& groups) {
    constexpr std::size_t kMost = 12;
    std::vector<std::string> names;
    for (const Group& group : groups) names.push_back(group.stem.substr(group.stem.rfind('/') + 1));
    return listed(names, kMost);
}

Choice gguf_choice(const Reference& wanted, const Group& group) {
    if (const std::string_view type = unread_type(group.stem); !type.empty()) {
        refuse(wanted, fmt::format("{} is a type of weights that Millrace does not read", type),
               fmt::format("take one of {}", fmt::join(usual_types(), ", ")));
    }
    Choice out;
    out.kind = Kind::gguf;
    for (int part = 1; part <= group.count; ++part) {
        const auto found = group.parts.find(part);
        if (found == group.parts.end()) {
            refuse(wanted, fmt::format("part {} of {} of {} is missing in the repository", part,
                                       group.count, group.stem));
        }
        out.files.push_back(found->second);
    }
    return out;
}

// Those that have the type; without those of a "UD-" mix of types, if there are others.
std::vector<Group> with_type(const std::vector<Group>& groups, std::string_view type) {
    std::vector<Group> all, plain;
    for (const Group& group : groups) {
        if (!has_type(group.stem, type)) continue;
        all.push_back(group);
        if (!has_type(group.stem, fmt::format("UD-{}", type))) plain.push_back(group);
    }
    return plain.empty() ? all : plain;
}

// The group, if there is one; refuses several.
const Group* only(const Reference& wanted, const std::vector<Group>& groups) {
    if (groups.size() > 1) {
        refuse(wanted, fmt::format("is the name of several GGUF files: {}", names_of(groups)),
               fmt::format("name one: {}:FILE", wanted.id()));
    }
    return groups.empty() ? nullptr : groups.data();
}

Choice usual_gguf(const Reference& wanted, const std::vector<Group>& groups) {
    for (const TypeName& type : kTypeNames) {
        if (!type.read) break;
        const std::vector<Group> fitting = with_type(groups, type.name);
        if (const Group* found = only(wanted, fitting)) return gguf_choice(wanted, *found);
    }
    std::vector<Group> readable;
    std::ranges::copy_if(groups, std::back_inserter(readable),
                         [](const Group& group) { return unread_type(group.stem).empty(); });
    if (readable.empty()) {
        refuse(wanted,
               fmt::format("its GGUF files are of types that Millrace does not read: {}",
                           names_of(groups)),
               fmt::format("look for a repository with one of {}", fmt::join(usual_types(), ", ")));
    }
    return gguf_choice(wanted, *only(wanted, readable));
}

Choice named(const Reference& wanted, const std::vector<std::string>& files,
             const std::vector<Group>& groups) {
    // A file: by its path, its name, or its name without the ending; a part stands for all parts.
    std::vector<Group> fitting;
    for (const Group& group : groups) {
        const auto is_meant = [&](const std::string& path) {
            return path == wanted.what || path == wanted.what + std::string(kEnding) ||
                   path.substr(path.rfind('/') + 1) == wanted.what;
        };
        const bool any = std::ranges::any_of(
            group.parts, [&](const auto& part) { return is_meant(part.second); });
        if (any || is_meant(group.stem + std::string(kEnding))) fitting.push_back(group);
    }
    if (const Group* found = only(wanted, fitting)) return gguf_choice(wanted, *found);
    if (std::ranges::find(files, wanted.what) != files.end()) {
        return {.kind = Kind::file, .files = {wanted.what}};
    }
    fitting = with_type(groups, wanted.what);
    if (const Group* found = only(wanted, fitting)) return gguf_choice(wanted, *found);
    if (groups.empty()) {
        refuse(wanted, "the repository has no GGUF files, and no file of this name",
               fmt::format("{} without a type is the whole model; 'millrace convert' makes q8_0 "
                           "and q4_0 of it",
                           wanted.id()));
    }
    refuse(wanted, "the repository has no file of this name or type", "it has " + names_of(groups));
}

}  // namespace

std::vector<std::string> usual_types() {
    std::vector<std::string> out;
    for (const TypeName& type : kTypeNames) {
        if (type.read) out.emplace_back(type.name);
    }
    return out;
}

Choice choose(const Reference& wanted, std::vector<std::string> files) {
    std::erase_if(files, [](const std::string& file) { return !is_safe_path(file); });
    std::ranges::sort(files);
    const auto has = [&](std::string_view name) {
        return std::ranges::find(files, name) != files.end();
    };
    const std::vector<Group> groups = groups_of(files);
    if (!wanted.what.empty()) return named(wanted, files, groups);
    const bool whole = has("model.safetensors");
    if (has("config.json") && (whole || has(kIndexName))) {
        Choice out;
        for (const std::string_view name : kFolderFiles) {
            if (has(name)) out.files.emplace_back(name);
        }
        out.sharded = !whole;
        out.files.emplace_back(whole ? "model.safetensors" : kIndexName);
        return out;
    }
    if (!groups.empty()) return usual_gguf(wanted, groups);
    const auto ends_with = [&](std::string_view ending) {
        return std::ranges::any_of(files,
                                   [&](const std::string& file) { return file.ends_with(ending); });
    };
    if (ends_with("adapter_model.safetensors")) {
        refuse(wanted, "is an adapter for another model (LoRA), which Millrace does not read",
               "pull a model that it was merged into");
    }
    if (ends_with(".bin") || ends_with(".pt") || ends_with(".pth")) {
        refuse(wanted,
               "has its weights in PyTorch's format alone, which can run programs as it is read; "
               "Millrace reads safetensors and GGUF",
               "look for a repository with one of these");
    }
    refuse(wanted,
           "has no model that Millrace can read: neither config.json with "
           "model.safetensors nor a GGUF file");
}

std::vector<std::string> shards_of_index(std::string_view json, const std::string& path) {
    const formats::JsonDocument document =
        formats::JsonDocument::parse(json, path, {}, {.depth = 16});
    const formats::JsonValue map = document.root()["weight_map"];
    std::set<std::string> names;
    for (const auto& [tensor, shard] : map.items()) {
        const bool plain = shard.is_string() && is_safe_path(shard.text()) &&
                           shard.text().find('/') == std::string_view::npos &&
                           shard.text().ends_with(".safetensors");
        if (!plain) {
            throw Error::input({.file = path,
                                .field = "weight_map",
                                .value = shard.shown(),
                                .problem = "is not the name of a safetensors file beside it"});
        }
        names.emplace(shard.text());
    }
    if (names.empty()) {
        throw Error::input({.file = path, .field = "weight_map", .problem = "names no file"});
    }
    return {names.begin(), names.end()};
}

}  // namespace mr::hub
