#include "cli/parser.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

namespace mr::cli {

Option Option::range(int least, int most) const {
    option_->check(CLI::Range(least, most));
    return *this;
}
Option Option::range(std::int64_t least, std::int64_t most) const {
    option_->check(CLI::Range(least, most));
    return *this;
}
Option Option::range(std::uint64_t least, std::uint64_t most) const {
    option_->check(CLI::Range(least, most));
    return *this;
}
Option Option::range(double least, double most) const {
    option_->check(CLI::Range(least, most));
    return *this;
}
Option Option::one_of(std::initializer_list<const char*> words) const {
    option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
    return *this;
}
Option Option::required() const {
    option_->required();
    return *this;
}
Option Option::excludes(Option other) const {
    option_->excludes(other.option_);
    return *this;
}
Option Option::separated_by(char mark) const {
    option_->delimiter(mark);
    return *this;
}
Option Option::repeatable() const {
    option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return *this;
}
Option Option::from_environment(const char* variable) const {
    option_->envname(variable);
    return *this;
}
Option Option::shows_default() const {
    option_->capture_default_str();
    return *this;
}
Option Option::shown_as(const char* what) const {
    option_->type_name(what);
    return *this;
}
bool Option::given() const { return option_->count() > 0; }

Command Command::add_subcommand(const std::string& name, const std::string& about) const {
    return Command(*app_->add_subcommand(name, about));
}
void Command::require_subcommand() const { app_->require_subcommand(1); }

template <typename T>
Option Command::add_option(const std::string& names, T& to, const std::string& about) const {
    return Option(app_->add_option(names, to, about));
}
template Option Command::add_option(const std::string&, int&, const std::string&) const;
template Option Command::add_option(const std::string&, std::int64_t&, const std::string&) const;
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&) const;
template Option Command::add_option(const std::string&, float&, const std::string&) const;
template Option Command::add_option(const std::string&, double&, const std::string&) const;
template Option Command::add_option(const std::string&, std::string&, const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<int>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<std::int64_t>&,
                                    const std::string&) const;
template Option Command::add_option(const std::string&, std::vector<std::string>&,
                                    const std::string&) const;

Option Command::add_flag(const std::string& names, bool& to, const std::string& about) const {
    return Option(app_->add_flag(names, to, about));
}
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::callback(std::function<void()> what) const { app_->callback(std::move(what)); }
bool Command::given(const std::string& option) const { return app_->count(option) > 0; }

}  // namespace mr::cli
