// Commands and their options, as the commands' files see them. CLI11 does the parsing, and only
// parser.cpp, parser_outline.cpp and program.cpp include it: its header takes seconds of every file
// that does.
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

// One option of a command. Copies are the same option, which lives as long as the parser.
class Option {
  public:
    explicit Option(CLI::Option* option) : option_(option) {}

    // What values may be. Words are taken in upper and lower case; what is stored is the word as
    // it stands here.
    Option range(int least, int most) const;
    Option range(std::int64_t least, std::int64_t most) const;
    Option range(std::uint64_t least, std::uint64_t most) const;
    Option range(double least, double most) const;
    Option one_of(std::initializer_list<const char*> words) const;

    Option required() const;
    Option excludes(Option other) const;   // both at once are refused
    Option separated_by(char mark) const;  // a list in one word: 1,2,3
    Option repeatable() const;             // one value each time that it is given
    Option from_environment(const char* variable) const;
    // In the help: what the variable holds now; what the value is called (N for whole numbers, X
    // for others and the words of one_of(), unless it is said: that of a file or a folder must not
    // be empty, as "$MODEL" is without the variable); for --help-all alone.
    Option shows_default() const;
    Option shown_as(const char* what) const;
    Option rare() const;

    // After parsing.
    bool given() const;

  private:
    CLI::Option* option_;
};

// A command, or the program itself. Copies are the same command.
class Command {
  public:
    explicit Command(CLI::App& app) : app_(&app) {}

    Command add_subcommand(const std::string& name, const std::string& about) const;
    void require_subcommand() const;
    void hide() const;  // from the list of commands
    // What the help puts above the options that are added from here on.
    void group(const char* name) const;

    // `names` as CLI11 takes them: "-n,--tokens", or "model" for one without dashes, or both:
    // "-m,--model,model". The help shows the first short and the first long name. `to` is written
    // when the option is given, and has to live as long as the parser: a string, a number, or a
    // vector (parser.cpp has the list).
    template <typename T>
    Option add_option(const std::string& names, T& to, const std::string& about) const;
    // "--name" sets `to`, "!--no-name" clears it.
    Option add_flag(const std::string& names, bool& to, const std::string& about) const;
    void footer(const std::string& text) const;  // of the help
    // Called when the command was, after its options were read. May throw Error.
    void callback(std::function<void()> what) const;

    // After parsing.
    bool given(const std::string& option) const;

    CommandOutline outline() const;

  private:
    CLI::App* app_;
};

// The group of options that no other was said for.
inline constexpr const char* kOptions = "Options";

CommandOutline outline_of(const CLI::App& app, const std::string& path);
// The help as Millrace writes it, for the program and every command that is added after this.
void set_help(CLI::App& program);

}  // namespace mr::cli
