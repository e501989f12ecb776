#include "cli/chat/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/parser.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/nearest.h"

namespace mr::cli {
namespace {

// The options with their current values as defaults.
CommandOutline sampling_outline(decode::GenerateOptions options) {
    return outline_of([&](const Command& command) { add_sampling_options(command, options); });
}

// A name of an option without dashes.
std::string bare(std::string_view name) {
    return std::string(name.substr(std::min(name.find_first_not_of('-'), name.size())));
}

std::string name_of(const OptionOutline& option) { return bare(option.longs.front()); }

const OptionOutline& setting_named(const CommandOutline& outline, std::string_view name) {
    std::string wanted = bare(name);
    std::replace(wanted.begin(), wanted.end(), '_', '-');
    std::vector<std::string> known;
    for (const OptionOutline& option : outline.options) {
        for (const std::string& other : option.names()) {
            if (bare(other) == wanted) return option;
            known.push_back(bare(other));
        }
    }
    // Every short name is near to a single letter.
    const std::string near = wanted.size() < 2 ? "" : nearest(wanted, known);
    throw Error::usage({.field = "/set " + one_line(name),
                        .problem = near.empty()
                                       ? "unknown setting"
                                       : fmt::format("unknown setting; did you mean {}?", near),
                        .remedy = "/set shows them all"});
}

// As it is written after /set.
std::string value_of(const OptionOutline& option, const decode::GenerateOptions& options) {
    const std::string name = name_of(option);
    if (name == "seed") return fmt::format("{}", options.sampling.seed);
    if (name == "ignore-eos") return options.ignore_end ? "on" : "off";
    if (name != "stop" && name != "stop-id") return option.fallback;
    std::vector<std::string> words;
    if (name == "stop") {
        for (const std::string& stop : options.stop) words.push_back('"' + one_line(stop) + '"');
    } else {
        for (const std::int32_t id : options.stop_ids) words.push_back(fmt::format("{}", id));
    }
    return words.empty() ? "\"\"" : fmt::format("{}", fmt::join(words, " "));
}

std::string line_of(const OptionOutline& option, const decode::GenerateOptions& options) {
    return fmt::format("  {:<16}{:<10} {}\n", name_of(option), value_of(option, options),
                       option.about);
}

}  // namespace

std::vector<std::string> setting_names() {
    std::vector<std::string> names;
    for (const OptionOutline& option : sampling_outline({}).options) {
        for (const std::string& name : option.longs) names.push_back(bare(name));
    }
    return names;
}

std::vector<std::string> setting_values(std::string_view name) {
    if (name == "ignore-eos") return {"off", "on"};
    return {};
}

std::string settings_text(const decode::GenerateOptions& options, std::string_view name) {
    const CommandOutline outline = sampling_outline(options);
    if (!name.empty()) return line_of(setting_named(outline, name), options);
    std::string text;
    for (const OptionOutline& option : outline.options) text += line_of(option, options);
    return text;
}

void change_setting(decode::GenerateOptions& options, const std::string& name,
                    const std::string& value) {
    const CommandOutline outline = sampling_outline(options);
    const OptionOutline& option = setting_named(outline, name);
    const std::string known = name_of(option);
    if (known == "stop") {  // may be repeated, as on the command line
        const bool quoted = value.size() >= 2 && value.starts_with('"') && value.ends_with('"');
        const std::string words = quoted ? value.substr(1, value.size() - 2) : value;
        if (words.empty()) {
            options.stop.clear();
        } else {
            options.stop.push_back(words);
        }
        return;
    }
    if (known == "stop-id" && value == "\"\"") return options.stop_ids.clear();
    std::string word = value;
    if (option.value.empty()) {  // a flag
        const auto values = setting_values(known);
        if (std::find(values.begin(), values.end(), value) == values.end()) {
            throw Error::usage({.field = "/set " + known,
                                .value = one_line(value),
                                .problem = fmt::format("is not {}", fmt::join(values, " or "))});
        }
        word = value == "on" ? "true" : "false";
    }
    decode::GenerateOptions changed = options;
    const std::string problem = set_option(
        [&](const Command& command) { add_sampling_options(command, changed); }, known, word);
    if (!problem.empty()) {
        throw Error::usage({.field = "/set " + known, .problem = one_line(problem)});
    }
    if (known == "stop-id") {
        changed.stop_ids.insert(changed.stop_ids.begin(), options.stop_ids.begin(),
                                options.stop_ids.end());
    }
    options = std::move(changed);
}

}  // namespace mr::cli
