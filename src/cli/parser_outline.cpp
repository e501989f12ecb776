// Converts CLI11's description of a command to an outline, and makes the help from it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "cli/parser.h"

namespace mr::cli {
namespace {

// Prefix of a rare option's group: CLI11 stores no other free text for an option.
constexpr const char* kRare = "rare:";

OptionOutline option_outline(const CLI::Option& option) {
    OptionOutline out;
    for (const std::string& name : option.get_snames()) out.shorts.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) out.longs.push_back("--" + name);
    if (option.get_positional()) {
        out.positional = option.get_name(true);
        out.positional.resize(std::min(out.positional.find(','), out.positional.size()));
        for (char& c : out.positional) {
            c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        }
    }
    const bool flag = option.get_items_expected_max() == 0;
    if (!flag) out.value = option.get_type_name();
    out.about = option.get_description();
    if (!flag) out.fallback = option.get_default_str();
    if (out.fallback.starts_with('[') && out.fallback.ends_with(']')) {  // a list
        out.fallback = out.fallback.substr(1, out.fallback.size() - 2);
    }
    if (out.fallback == "\"\"") out.fallback.clear();
    out.environment = option.get_envname();
    out.group = option.get_group();
    if (out.group.starts_with(kRare)) {
        out.rare = true;
        out.group.erase(0, std::string(kRare).size());
    }
    out.required = option.get_required();
    out.list = option.get_delimiter() != '\0';
    out.many = option.get_items_expected_max() > 1 && !out.list;
    return out;
}

class Help final : public CLI::FormatterBase {
  public:
    std::string make_help(const CLI::App* app, std::string path,
                          CLI::AppFormatMode mode) const override {
        return help_text(outline_of(*app, path), mode == CLI::AppFormatMode::All);
    }
};

}  // namespace

Option Option::rare() const {
    option_->group(kRare + option_->get_group());
    return *this;
}

CommandOutline outline_of(const CLI::App& app, const std::string& path) {
    CommandOutline out;
    out.name = app.get_name();
    out.path = path;
    out.about = app.get_description();
    out.footer = app.get_footer();
    out.hidden = app.get_group().empty();
    for (const CLI::Option* option : app.get_options({})) {
        if (option->get_group().empty()) continue;
        out.options.push_back(option_outline(*option));
        const bool help = option == app.get_help_ptr() || option == app.get_help_all_ptr();
        if (help) out.options.back().group = kHelp;
    }
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        out.commands.push_back(outline_of(*command, path + " " + command->get_name()));
    }
    return out;
}

void set_help(CLI::App& program) {
    program.formatter(std::make_shared<Help>());
    program.set_help_flag("-h,--help", "This help");
    program.set_help_all_flag("--help-all", "This help, with rare options and aliases");
}

}  // namespace mr::cli
