// Commands and their options, for the commands' files. CLI11 does the parsing, and only
// parser.cpp, parser_outline.cpp and program.cpp include it: its header adds seconds to every
// compilation.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "cli/outline.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace mr::cli {

// One option of a command. Copies refer to the same option, which lives as long as the parser.
class Option {
  public:
    explicit Option(CLI::Option* option) : option_(option) {}

    // Allowed values. Words match in any case; the stored word is the one given
    // here.
    Option range(int least, int most) const;
    Option range(std::int64_t least, std::int64_t most) const;
    Option range(std::uint64_t least, std::uint64_t most) const;
    Option range(double least, double most) const;
    Option one_of(std::initializer_list<const char*> words) const;

    Option required() const;
    Option excludes(Option other) const;   // both together are refused
    Option separated_by(char mark) const;  // a list in one word: 1,2,3
    Option repeatable() const;             // may be given several times, one value each
    Option from_environment(const char* variable) const;
    // For the help. shows_default(): the variable's current value. shown_as(): the placeholder of
    // the value; default: N for whole numbers, X for others, the words of one_of(). A value shown
    // as a file or a folder must not be empty, as "$MODEL" is if the variable is not set. rare():
    // only in --help-all.
    Option shows_default() const;
    Option shown_as(const char* what) const;
    Option rare() const;

    // Valid after parsing.
    bool given() const;

  private:
    CLI::Option* option_;
};

// A command, or the program itself. Copies refer to the same command.
class Command {
  public:
    explicit Command(CLI::App& app) : app_(&app) {}

    Command add_subcommand(const std::string& name, const std::string& about) const;
    void require_subcommand() const;
    void hide() const;  // from the list of commands
    // The heading in the help above the options added from here on.
    void group(const char* name) const;

    // `names` in CLI11's notation: "-n,--tokens", or "model" for one without dashes, or both:
    // "-m,--model,model". The help shows the first short and the first long name. `to` is written
    // if the option is given, and must live as long as the parser: a string, a number, or a vector
    // (parser.cpp has the list).
    template <typename T>
    Option add_option(const std::string& names, T& to, const std::string& about) const;
    // "--name" sets `to`, "!--no-name" clears it.
    Option add_flag(const std::string& names, bool& to, const std::string& about) const;
    void footer(const std::string& text) const;  // of the help
    // Called if the command is, after its options are parsed. May throw Error.
    void callback(std::function<void()> what) const;

    // Valid after parsing: in the command line. A value from the environment does not count.
    bool given(const std::string& option) const;

    CommandOutline outline() const;

  private:
    CLI::App* app_;
};

// The default group of options.
inline constexpr const char* kOptions = "Options";

CommandOutline outline_of(const CLI::App& app, const std::string& path);

// Options apart from a command line, which `add` adds: for what can be set while a command runs.
using AddOptions = std::function<void(const Command&)>;
CommandOutline outline_of(const AddOptions& add);
// Sets an option as --NAME=VALUE does (`name` without dashes); returns what is wrong with the
// value, or nothing.
std::string set_option(const AddOptions& add, const std::string& name, const std::string& value);
// Installs Millrace's help for the program and every command added after this.
void set_help(CLI::App& program);

}  // namespace mr::cli
