// The man page: the help of all commands, as troff.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "cli/outline.h"

namespace mr::cli {
namespace {

// Escapes text so that troff prints it literally: no escapes, no requests at the beginning of a
// line, and dashes that can be copied.
std::string plain(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const bool begins = i == 0 || text[i - 1] == '\n';
        if (begins && (c == '.' || c == '\'')) out += "\\&";
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else if (c == '~') {
            out += "\\(ti";
        } else if (c == '^') {
            out += "\\(ha";
        } else if (c == '`') {
            out += "\\(ga";
        } else if (c == '\'') {
            out += "\\(aq";
        } else {
            out += c;
        }
    }
    return out;
}

std::string option_text(const OptionOutline& option) {
    std::vector<std::string> names;
    if (!option.positional.empty()) names.push_back(fmt::format("\\fI{}\\fR", option.positional));
    for (const std::string& name : option.names()) {
        names.push_back(fmt::format("\\fB{}\\fR", plain(name)));
    }
    const std::string value =
        option.value.empty() || (!option.positional.empty() && option.names().empty())
            ? ""
            : fmt::format(" \\fI{}\\fR", plain(option.value));
    std::string about = plain(option.about);
    if (!option.fallback.empty()) about += fmt::format(" ({})", plain(option.fallback));
    if (!option.environment.empty()) about += fmt::format("; or {}", option.environment);
    return fmt::format(".TP\n{}{}\n{}\n", fmt::join(names, ", "), value, about);
}

void add_command(std::string& page, const CommandOutline& command) {
    if (command.hidden) return;
    page += fmt::format(".SS {}\n{}\n", plain(command.path), plain(command.about));
    for (const OptionOutline& option : command.options) {
        if (option.group != kHelp) page += option_text(option);
    }
    if (!command.footer.empty()) {
        page += fmt::format(".PP\n.nf\n{}\n.fi\n", plain(command.footer));
    }
    for (const CommandOutline& inner : command.commands) add_command(page, inner);
}

}  // namespace

std::string man_page(const CommandOutline& program, std::string_view version) {
    std::string page = fmt::format(
        ".\\\" Made by '{name} man' from the program's own help.\n"
        ".TH {name} 1 \"\" \"{}\" \"User Commands\"\n"
        ".SH NAME\n{name} \\- {}\n"
        ".SH SYNOPSIS\n\\fB{name}\\fR \\fICOMMAND\\fR [\\fIMODEL\\fR] [\\fIOPTIONS\\fR]\n"
        ".SH DESCRIPTION\n{}\n.PP\n.nf\n{}\n.fi\n.SH COMMANDS\n",
        plain(version), plain(program.about), plain(program.about), plain(program.footer),
        fmt::arg("name", plain(program.name)));
    for (const CommandOutline& command : program.commands) add_command(page, command);
    page +=
        ".SH ENVIRONMENT\n"
        ".TP\n\\fBMILLRACE_MODEL\\fR\nThe model where none is named\n"
        ".TP\n\\fBMILLRACE_DEVICE\\fR\nauto, cpu or cuda, where \\fB\\-\\-device\\fR is not given; "
        "a resumed training run stays on its device\n"
        ".TP\n\\fBMILLRACE_DISABLE\\fR\nA list of parts to switch off, as \\fB\\-\\-disable\\fR\n"
        ".TP\n\\fBMILLRACE_ISA\\fR\nThe instruction path of the CPU's kernels, as portable\n"
        ".TP\n\\fBMILLRACE_READ_RATE\\fR\nHow fast the CPU's memory is read, as 27GB/s; then "
        "\\fBrun\\fR does not measure it\n"
        ".TP\n\\fBHF_HUB_CACHE\\fR, \\fBHF_HOME\\fR, \\fBLLAMA_CACHE\\fR\nWhere models that were "
        "downloaded lie\n"
        ".TP\n\\fBHF_ENDPOINT\\fR, \\fBHF_TOKEN\\fR, \\fBHTTPS_PROXY\\fR, "
        "\\fBNO_PROXY\\fR, \\fBSSL_CERT_FILE\\fR\nOf \\fBpull\\fR: the hub, who asks it, through "
        "what, and whom to trust\n"
        ".SH FILES\n"
        ".TP\n\\fI~/.cache/huggingface/hub\\fR\nModels that were downloaded\n"
        ".TP\n\\fI$XDG_STATE_HOME/millrace/chat_history\\fR\n"
        "Lines that were typed in \\fBchat\\fR; ~/.local/state stands in for the variable\n"
        ".SH EXIT STATUS\n"
        "0; 1 for bad input; 2 for wrong usage; 3 where the device or the memory does not do; "
        "128 and\nthe number of the signal where one ended the program.\n";
    return page;
}

}  // namespace mr::cli
