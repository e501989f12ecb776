// A command and its options as data: the source of the help, the man page, shell completions and
// suggestions after a mistake. Command::outline() returns it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr::cli {

struct OptionOutline {
    std::vector<std::string> shorts, longs;  // with dashes, the preferred one first
    std::string positional;                  // MODEL: may also be given without a dash; else empty
    std::string value;                       // placeholder: N, FILE, auto|cpu|cuda; empty: a flag
    std::string about;
    std::string fallback;     // the default, if shown
    std::string environment;  // a variable used if the option is not given
    std::string group;
    bool rare = false;  // only in --help-all
    bool required = false;
    bool many = false;  // several values after it
    bool list = false;  // several in one word, with commas between them

    std::vector<std::string> names() const;  // with dashes, short ones first
    std::vector<std::string> words() const;  // the possible values, if they can be listed
    bool takes_path() const;                 // the value is a file or a folder
};

struct CommandOutline {
    std::string name;
    std::string path;  // "millrace bench decode"
    std::string about, footer;
    std::vector<OptionOutline> options;
    std::vector<CommandOutline> commands;
    bool hidden = false;
};

// The group of --help and --help-all, which comes last.
inline constexpr const char* kHelp = "Help";

// The help. all: with rare options, further names of options, and environment variables.
std::string help_text(const CommandOutline& command, bool all);
// The man page of the program and all of its commands.
std::string man_page(const CommandOutline& program, std::string_view version);
// A script for `shell`: bash, zsh or fish.
std::string completion_script(const CommandOutline& program, std::string_view shell);

}  // namespace mr::cli
