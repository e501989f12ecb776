// The help of a command: what it does, its usage, its options in groups.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "cli/outline.h"

namespace mr::cli {
namespace {

constexpr std::size_t kWidth = 98;   // of a line
constexpr std::size_t kIndent = 28;  // where descriptions begin

// Descriptions follow names in the middle of a line, so "At most" becomes "at most". A word with
// capitals inside, such as AdamW, is a name, and N is a placeholder.
std::string begin_small(std::string text) {
    if (text.empty()) return text;
    const std::size_t end = std::min(text.find_first_of(" ,;:."), text.size());
    const bool value = end == 1 && text[0] != 'A';
    const bool name =
        value || std::any_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(end),
                             [](unsigned char c) { return std::isupper(c); });
    if (!name) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
    return text;
}

// `name`, then `text` in the column of descriptions, wrapped at spaces.
std::string entry(const std::string& name, std::string_view text) {
    std::string out = "  " + name;
    std::size_t column = out.size();
    if (column + 2 > kIndent) {
        out += '\n';
        column = 0;
    }
    out.append(kIndent - column, ' ');
    column = kIndent;
    bool first = true;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        if (!first && column + 1 + (end - at) > kWidth) {
            out += '\n' + std::string(kIndent, ' ');
            column = kIndent;
            first = true;
        }
        if (!first) out += ' ';
        column += (first ? 0 : 1) + (end - at);
        out += text.substr(at, end - at);
        first = false;
        at = end + 1;
    }
    while (out.ends_with(' ')) out.pop_back();
    return out + "\n";
}

std::string value_of(const OptionOutline& option) {
    if (option.value.empty()) return "";
    return " " + option.value + (option.many ? "..." : option.list ? ",..." : "");
}

// "-n, --tokens N"; long names without a short one are indented, so that they line up.
std::string shown_name(const OptionOutline& option) {
    if (!option.positional.empty()) return option.positional;
    if (option.longs.empty()) return option.shorts.front() + value_of(option);
    const std::string before = option.shorts.empty() ? "    " : option.shorts.front() + ", ";
    return before + option.longs.front() + value_of(option);
}

// The names that shown_name() leaves out.
std::vector<std::string> other_names(const OptionOutline& option) {
    std::vector<std::string> others = option.names();
    if (!option.positional.empty()) return others;
    std::erase_if(others, [&](const std::string& name) {
        return (!option.shorts.empty() && name == option.shorts.front()) ||
               (!option.longs.empty() && name == option.longs.front());
    });
    return others;
}

std::string described(const OptionOutline& option, bool all) {
    std::string text = begin_small(option.about);
    if (!option.fallback.empty()) text += fmt::format(" ({})", option.fallback);
    if (option.required) text += " (required)";
    if (!all) return text;
    if (const auto others = other_names(option); !others.empty()) {
        text += fmt::format("; also {}", fmt::join(others, ", "));
    }
    if (!option.environment.empty()) text += fmt::format("; or {}", option.environment);
    return text;
}

std::string usage(const CommandOutline& command) {
    std::string text = "Usage: " + command.path;
    if (!command.commands.empty()) text += " COMMAND";
    for (const OptionOutline& option : command.options) {
        if (option.positional.empty()) continue;
        text += option.required ? " " + option.positional : " [" + option.positional + "]";
    }
    return text + " [OPTIONS]\n";
}

void list_commands(std::string& text, const CommandOutline& of, const std::string& before,
                   bool deep) {
    for (const CommandOutline& command : of.commands) {
        if (command.hidden) continue;
        text += entry(before + command.name, begin_small(command.about));
        if (deep) list_commands(text, command, before + command.name + " ", deep);
    }
}

}  // namespace

std::string help_text(const CommandOutline& command, bool all) {
    std::string text = command.about + (command.about.ends_with('.') ? "\n\n" : ".\n\n");
    text += usage(command);
    if (!command.commands.empty()) {
        text += "\nCommands:\n";
        list_commands(text, command, "", all);
    }
    std::vector<std::string> groups;
    for (const OptionOutline& option : command.options) {
        const bool known = std::find(groups.begin(), groups.end(), option.group) != groups.end();
        if (!known && option.group != kHelp) groups.push_back(option.group);
    }
    groups.emplace_back(kHelp);
    bool left_out = false;
    std::string placed;
    for (const OptionOutline& option : command.options) {
        if (!option.positional.empty()) placed += entry(shown_name(option), described(option, all));
    }
    if (!placed.empty()) text += "\n" + placed;
    for (const std::string& group : groups) {
        std::string lines;
        for (const OptionOutline& option : command.options) {
            if (option.group != group || !option.positional.empty()) continue;
            left_out |= option.rare;
            if (option.rare && !all) continue;
            lines += entry(shown_name(option), described(option, all));
        }
        if (!lines.empty()) text += fmt::format("\n{}:\n{}", group, lines);
    }
    if (!command.footer.empty()) text += "\n" + command.footer + "\n";
    if (left_out && !all) text += fmt::format("'{} --help-all' has more options.\n", command.path);
    return text;
}

}  // namespace mr::cli
