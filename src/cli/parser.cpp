#include "cli/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace mr::cli {
namespace {

std::string lower(std::string word) {
    for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return word;
}

// Parses the whole word as a decimal number; else returns the problem in words.
template <typename T>
std::string read_number(std::string_view word, T& to) {
    std::string_view digits = word;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const char* const end = digits.data() + digits.size();
    double any = 0;
    const auto [any_end, any_error] = std::from_chars(digits.data(), end, any);
    const bool number = any_end == end && any_error != std::errc::invalid_argument;
    if (!number || std::isnan(any) || std::isinf(any)) {
        return fmt::format("'{}' is not a number", word);
    }
    const auto [rest, error] = std::from_chars(digits.data(), end, to);
    if (error == std::errc::result_out_of_range) {
        return fmt::format("'{}' is a number of too many digits", word);
    }
    if (error == std::errc{} && rest == end) return {};
    if (std::is_unsigned_v<T> && digits.starts_with('-')) {
        return fmt::format("must not be negative, as '{}' is", word);
    }
    return fmt::format("'{}' is not a whole number", word);
}

// CLI11 would read 010 as 8 and report words as "Could not convert".
template <typename T>
void take_numbers(CLI::Option* option) {
    option->transform(CLI::Validator(
        [](std::string& word) {
            T value{};
            std::string problem = read_number<T>(word, value);
            if (problem.empty() && std::is_integral_v<T>) word = fmt::format("{}", value);
            if (problem.empty() && word.starts_with('+')) word.erase(0, 1);
            return problem;
        },
        ""));
}

template <typename T>
void check_range(CLI::Option* option, T least, T most) {
    option->check([least, most](const std::string& word) -> std::string {
        T value{};
        if (std::string problem = read_number<T>(word, value); !problem.empty()) return problem;
        if (value >= least && value <= most) return {};
        constexpr T kMost = std::numeric_limits<T>::max();
        return most == kMost ? fmt::format("must be {} or more, not {}", least, word)
                             : fmt::format("must be from {} to {}, not {}", least, most, word);
    });
}

// The placeholder of a value of this type in the help.
template <typename T>
const char* value_name() {
    if constexpr (std::is_integral_v<T>) {
        return "N";
    } else if constexpr (std::is_floating_point_v<T>) {
        return "X";
    } else {
        return "WORD";
    }
}

template <typename T>
struct Element {
    using Type = T;
};
template <typename T>
struct Element<std::vector<T>> {
    using Type = T;
};

}  // namespace

Option Option::range(int least, int most) const {
    check_range<std::int64_t>(
        option_, least,
        most == std::numeric_limits<int>::max() ? std::numeric_limits<std::int64_t>::max() : most);
    return *this;
}
Option Option::range(std::int64_t least, std::int64_t most) const {
    check_range(option_, least, most);
    return *this;
}
Option Option::range(std::uint64_t least, std::uint64_t most) const {
    check_range(option_, least, most);
    return *this;
}
Option Option::range(double least, double most) const {
    check_range(option_, least, most);
    return *this;
}
Option Option::one_of(std::initializer_list<const char*> list) const {
    const std::vector<std::string> words(list.begin(), list.end());
    option_->transform(CLI::Validator(
        [words](std::string& word) -> std::string {
            const auto same = std::find_if(words.begin(), words.end(), [&](const std::string& w) {
                return lower(w) == lower(word);
            });
            if (same == words.end()) {
                return fmt::format("'{}' is not a choice; use {}", word, fmt::join(words, ", "));
            }
            word = *same;
            return {};
        },
        ""));
    option_->type_name(fmt::format("{}", fmt::join(words, "|")));
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
    OptionOutline named;
    named.value = what;
    if (named.takes_path()) {
        option_->check([](const std::string& word) -> std::string {
            return word.empty() ? "is empty: name one, or leave it out" : "";
        });
    }
    return *this;
}
bool Option::given() const { return option_->count() > 0; }

Command Command::add_subcommand(const std::string& name, const std::string& about) const {
    return Command(*app_->add_subcommand(name, about));
}
void Command::require_subcommand() const { app_->require_subcommand(1); }
void Command::hide() const { app_->group(""); }
void Command::group(const char* name) const { app_->option_defaults()->group(name); }

template <typename T>
Option Command::add_option(const std::string& names, T& to, const std::string& about) const {
    using Value = typename Element<T>::Type;
    CLI::Option* option = nullptr;
    if constexpr (std::is_floating_point_v<T>) {  // CLI11 would read them as the locale writes them
        option = app_->add_option(
            names,
            [&to](const CLI::results_t& words) { return read_number(words.front(), to).empty(); },
            about, false, [&to] { return fmt::format("{}", to); });
    } else {
        option = app_->add_option(names, to, about);
    }
    option->type_name(value_name<Value>());
    if constexpr (std::is_arithmetic_v<Value>) take_numbers<Value>(option);
    return Option(option);
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
CommandOutline outline_of(const AddOptions& add) {
    CLI::App app;
    app.set_help_flag();
    add(Command(app));
    return outline_of(app, "");
}

std::string set_option(const AddOptions& add, const std::string& name, const std::string& value) {
    CLI::App app;
    app.set_help_flag();
    add(Command(app));
    try {
        app.parse(std::vector<std::string>{"--" + name + "=" + value});
        return {};
    } catch (const CLI::ParseError& error) {  // "--NAME: PROBLEM"
        const std::string problem = error.what();
        const std::size_t colon = problem.find(": ");
        return colon == std::string::npos ? problem : problem.substr(colon + 2);
    }
}

void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::callback(std::function<void()> what) const { app_->callback(std::move(what)); }
bool Command::given(const std::string& option) const { return app_->count(option) > 0; }
CommandOutline Command::outline() const { return outline_of(*app_, app_->get_name()); }

}  // namespace mr::cli
