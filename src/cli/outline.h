// A command and its options as data: what the help, the man page, the completions of shells and
// the suggestions after a mistake are made from. Command::outline() gives it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr::cli {

struct OptionOutline {
    std::vector<std::string> shorts, longs;  // with their dashes, the usual one first
    std::string positional;                  // MODEL: may also be given by its place; else empty
    std::string value;                       // what follows it: N, FILE, auto|cpu|cuda; no: a flag
    std::string about;
    std::string fallback;     // the default, where it is shown
    std::string environment;  // a variable that stands in for it
    std::string group;
    bool rare = false;  // for --help-all
    bool required = false;
    bool many = false;  // several values after it
    bool list = false;  // several in one word, with commas between them

    std::vector<std::string> names() const;  // with dashes, short ones first
    std::vector<std::string> words() const;  // the values there are, where they can be listed
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

// The nearest of `words`, by insertions, deletions and replacements; empty where none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

// The help. all: with rare options, other names of options, and variables of the environment.
std::string help_text(const CommandOutline& command, bool all);
// A page for man(1), of the program and all of its commands.
std::string man_page(const CommandOutline& program, std::string_view version);
// A script for `shell`: bash, zsh or fish.
std::string completion_script(const CommandOutline& program, std::string_view shell);

}  // namespace mr::cli
