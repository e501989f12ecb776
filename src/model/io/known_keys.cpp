#include "model/io/known_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "formats/bytes.h"
#include "model/io/known_key_lists.h"
#include "model/io/load_diffusion.h"
#include "ops/attention/mask.h"

namespace mr::model {
namespace {

template <typename List>
bool has(const List& list, std::string_view key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

template <typename List>
bool has(const List& list, std::string_view family, std::string_view key) {
    return std::any_of(std::begin(list), std::end(list), [&](const FamilyKey& known) {
        return known.family == family && known.name == key;
    });
}

template <typename List>
std::optional<double> neutral(const List& list, std::string_view key) {
    const auto at = std::find_if(std::begin(list), std::end(list),
                                 [&](const NeutralKey& known) { return known.name == key; });
    if (at == std::end(list)) return std::nullopt;
    return at->value;
}

// Keys that are unknown or have an unsupported value, and keys of `ignored` that were found.
struct Found {
    std::vector<std::string> unknown, unable, ignored;

    void refuse(const std::string& file) const {
        if (unknown.empty() && unable.empty()) return;
        std::vector<std::string> all = unknown.empty() ? unable : unknown;
        for (std::string& key : all) key = formats::printable(key);
        const char* problem = unknown.empty()
                                  ? "ask for a feature that this engine lacks"
                                  : "unknown to this engine: they may change the model's output";
        throw Error::input({.file = file,
                            .field = fmt::format("keys {}", fmt::join(all, ", ")),
                            .problem = problem,
                            .remedy = fmt::format("--ignore-key {} loads the model anyway",
                                                  fmt::join(all, " --ignore-key "))});
    }
    void note_absent(std::span<const std::string> wanted, std::vector<std::string>& notes) const {
        for (const std::string& key : wanted) {
            if (has(ignored, key)) continue;
            notes.push_back(
                fmt::format("--ignore-key {}: the model has no such key", formats::printable(key)));
        }
    }
};

}  // namespace

void require_known_keys(const formats::GgufFile& file, const std::string& arch,
                        const ModelSpec& spec, std::span<const std::string> ignored,
                        std::vector<std::string>& notes) {
    Found found;
    if (const auto type = file.get_string("general.type");
        type && *type != "model" && !has(ignored, "general.type")) {
        throw Error::input({.file = file.path(),
                            .field = "general.type",
                            .value = formats::printable(*type),
                            .problem = "this file is not a whole model",
                            .remedy = "give the model it belongs to"});
    }
    for (const std::string& key : file.keys()) {
        if (has(ignored, key)) found.ignored.push_back(key);
        if (!key.starts_with(arch + ".") || has(ignored, key)) continue;
        const std::string_view name = std::string_view(key).substr(arch.size() + 1);
        if (has(kGgufKeys, name) || has(kFamilyGgufKeys, spec.family, name)) continue;
        std::optional<double> harmless = neutral(kNeutralGgufKeys, name);
        if (name == "attention.causal" && diffusion_family(spec.family)) harmless = 0;
        if (name == "attention.scale") harmless = ops::default_scale(spec.head_dim);
        std::optional<double> value;
        using formats::GgufType;
        const GgufType type = *file.type_of(key);
        if (type == GgufType::boolean) {
            value = *file.get_bool(key) ? 1 : 0;
        } else if (type != GgufType::string && type != GgufType::array) {
            value = file.get_float(key);
        }
        // A writer may have rounded the value to f32.
        if (harmless && value && std::fabs(*value - *harmless) <= 1e-6 * std::fabs(*harmless)) {
            continue;
        }
        (harmless ? found.unable : found.unknown).push_back(key);
    }
    found.refuse(file.path());
    found.note_absent(ignored, notes);
}

void require_known_keys(formats::JsonValue config, const std::string& file,
                        const std::string& family, std::span<const std::string> ignored,
                        std::vector<std::string>& notes) {
    Found found;
    for (const auto& [key, value] : config.items()) {
        if (has(ignored, key)) found.ignored.emplace_back(key);
        if (value.is_null() || has(ignored, key)) continue;
        if (key == "rope_scaling" || key == "rope_parameters") {
            for (const auto& [inner, part] : value.items()) {
                const std::string name = fmt::format("{}.{}", key, inner);
                if (has(ignored, name)) found.ignored.push_back(name);
                if (part.is_null() || part.is_object() || has(kRopeKeys, inner)) continue;
                if (!has(ignored, name)) found.unknown.push_back(name);
            }
            continue;
        }
        if (has(kConfigKeys, key) || has(kHarmlessConfigKeys, key)) continue;
        if (has(kFamilyConfigKeys, family, key)) continue;
        const std::optional<double> harmless = neutral(kNeutralConfigKeys, key);
        if (harmless) {
            const bool same = value.is_boolean()  ? value.get<bool>() == (*harmless != 0)
                              : value.is_number() ? value.get<double>() == *harmless
                                                  : false;
            if (same) continue;
        }
        (harmless ? found.unable : found.unknown).emplace_back(key);
    }
    found.refuse(file);
    found.note_absent(ignored, notes);
}

}  // namespace mr::model
