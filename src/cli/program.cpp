// PROGRAM COMMAND: parses, calls, prints. Exit codes: 0, 1 bad input, 2 usage, 3 device or memory,
// 128 + the signal after Ctrl-C (130), SIGTERM or SIGHUP.
#include <fmt/format.h>
#include <strings.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/caller.h"
#include "cli/commands.h"
#include "cli/model_name.h"
#include "cli/parser.h"
#include "cli/terminal.h"
#include "cli/version.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/nearest.h"
#include "core/out_of_memory.h"

namespace mr::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  millrace run -p \"Once upon a time\"          a story from the bundled model\n"
    "  millrace run model.gguf -p \"Hello\" -n 100   text from a model of yours\n"
    "  millrace chat model.gguf                    talk with it\n"
    "  millrace info model.gguf                    what it is and what it needs\n"
    "A MODEL is a GGUF file, a Hugging Face folder, the folder of a training run or a llama2.c "
    ".bin,\n"
    "or the name of a bundled one: storyteller (the default) or storyteller-diffusion.\n"
    "'millrace COMMAND --help' says more.";

int fail(int code, std::string_view message) {
    complain(one_line(message));
    return code;
}

// Commands that are the laboratory's now: what was typed, and what to type.
constexpr std::pair<std::string_view, std::string_view> kMoved[] = {
    {"millrace bench attention", "attention"}, {"millrace bench comm", "comm"},
    {"millrace bench context", "context"},     {"millrace bench fusion", "fusion"},
    {"millrace bench gemm", "gemm"},           {"millrace bench ladder", "ladder"},
    {"millrace bench norm", "norms"},          {"millrace bench overlap", "overlap"},
    {"millrace bench precision", "precision"}, {"millrace bench sample", "sampler"},
    {"millrace bench norms", "norms"},         {"millrace bench sampler", "sampler"},
    {"millrace bench streams", "streams"},     {"millrace data storybook", "story write"},
    {"millrace data check", "story check"},
};

// CLI11 would report a misspelt command as an unexpected argument; name the nearest command
// instead.
void check_command(const CommandOutline& of, std::string_view word) {
    const std::string typed = fmt::format("{} {}", of.path, word);
    for (const auto& [before, now] : kMoved) {
        if (typed != before) continue;
        throw Error::usage({.field = std::string(word),
                            .problem = "is an experiment of the laboratory",
                            .remedy = fmt::format("'millrace-lab {}'", now)});
    }
    std::vector<std::string> known;
    for (const CommandOutline& command : of.commands) {
        if (word == command.name) return;
        if (!command.hidden) known.push_back(command.name);
    }
    const std::string near = nearest(word, known);
    throw Error::usage({.field = one_line(word),
                        .problem = "unknown command",
                        .remedy = near.empty()
                                      ? fmt::format("'{} --help' lists them", of.path)
                                      : fmt::format("did you mean '{} {}'?", of.path, near)});
}

// Words that the command does not know. For an unknown option, the nearest one is named.
std::string describe_extras(const CommandOutline& command, const std::vector<std::string>& words) {
    for (const std::string& word : words) {
        if (!word.starts_with('-') || word.size() < 2) continue;
        const std::string name = word.substr(0, word.find('='));
        std::vector<std::string> known;
        for (const OptionOutline& option : command.options) {
            for (const std::string& other : option.names()) {
                if (other.starts_with("--")) known.push_back(other.substr(2));
            }
        }
        const std::string_view letters = std::string_view(name).substr(name[1] == '-' ? 2 : 1);
        // Every short name is near to a single letter.
        const std::string near = letters.size() < 2 ? "" : nearest(letters, known);
        return fmt::format("{}: unknown option{}", one_line(name),
                           near.empty() ? "" : fmt::format("; did you mean --{}?", near));
    }
    std::string problem = "not expected:";
    for (const std::string& word : words) problem += " " + one_line(word);
    const bool prompts = std::ranges::any_of(command.options, [](const OptionOutline& option) {
        return std::ranges::count(option.longs, "--prompt") > 0 && option.value == "WORDS";
    });
    return prompts ? problem + "; a prompt of several words is given in quotes" : problem;
}

// CLI11 names an option by its first long name. Use the name that was typed, or MODEL if it was
// given without a dash, or the variable that stands for it.
std::string as_typed(const CommandOutline& command, const std::vector<std::string>& words,
                     const std::string& name) {
    for (const OptionOutline& option : command.options) {
        const std::vector<std::string> names = option.names();
        if (std::find(names.begin(), names.end(), name) == names.end() &&
            ::strcasecmp(name.c_str(), option.positional.c_str()) != 0) {
            continue;
        }
        for (const std::string& word : words) {
            for (const std::string& other : names) {
                const bool attached = other.starts_with("--") ? word.starts_with(other + "=")
                                                              : word.starts_with(other);  // -n5
                if (word == other || attached) return other;
            }
        }
        if (!option.environment.empty() && std::getenv(option.environment.c_str())) {
            return option.environment;
        }
        return option.positional.empty() ? name : option.positional;
    }
    return name;
}

// Options of llama.cpp that have no like here: CLI11 would read -hf as -h, -ngl 9 as -n with the
// value "gl".
struct ForeignOption {
    std::vector<std::string_view> names;
    const char* answer;
};

// The answer to the first foreign option among `typed`; empty: there is none.
std::string answer_to_foreign(const CommandOutline& command,
                              const std::vector<std::string>& typed) {
    static const std::vector<ForeignOption> kForeign = {
        {{"-ngl", "--gpu-layers", "--n-gpu-layers"},
         "is not an option here: the whole model runs on one device, which --device chooses"},
        {{"-hf", "-hfr", "--hf", "--hf-repo"},
         "is not an option here: 'millrace pull OWNER/NAME' downloads a model, and OWNER/NAME is "
         "then its MODEL"},
        {{"-hff", "--hf-file"},
         "is not an option here: 'millrace pull OWNER/NAME:FILE' downloads one file"},
        {{"-cnv", "-no-cnv", "--conversation", "--no-conversation"},
         "is not an option here: 'millrace chat MODEL' talks, and 'millrace run' does not"},
        {{"-f", "--file"},
         "is not an option here: --prompt-file of 'millrace run' names a file with the prompt"},
    };
    const auto known = [&](std::string_view name) {
        return std::ranges::any_of(command.options, [&](const OptionOutline& option) {
            return std::ranges::count(option.names(), name) > 0;
        });
    };
    const bool program = !command.commands.empty();
    if (!known("--device") && !program) return {};
    for (const std::string& word : typed) {
        if (word == "--") break;
        for (const ForeignOption& foreign : kForeign) {
            for (const std::string_view name : foreign.names) {
                if (!word.starts_with(name) || known(name)) continue;
                const std::string_view rest = std::string_view(word).substr(name.size());
                const bool number = name == "-ngl" && rest.find_first_not_of("=-0123456789") ==
                                                          std::string_view::npos;
                if (!rest.empty() && !rest.starts_with('=') && !number) continue;
                const bool asks = known("--prompt-file") || command.name == "chat";
                if ((name == "-f" || name == "--file") && !asks) continue;
                return fmt::format("{}: {}", name, foreign.answer);
            }
        }
    }
    return {};
}

// The command that was called, as far as it was found, and its path.
std::pair<const CLI::App*, std::string> called(const CLI::App& app) {
    const CLI::App* command = &app;
    std::string path = app.get_name();
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().front();
        path += " " + command->get_name();
    }
    return {command, path};
}

// The error in the arguments (`typed`), and the command whose help says more.
std::string describe(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& typed) {
    const auto [command, path] = called(app);
    std::string problem = one_line(error.what());
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {  // "--tokens: 1 required N missing"
        constexpr std::string_view kRequired = ": 1 required ";
        const std::size_t at = problem.find(kRequired), end = problem.rfind(" missing");
        if (at != std::string::npos && end != std::string::npos) {
            const std::size_t value = at + kRequired.size();
            problem = fmt::format("{}: needs a value ({})", problem.substr(0, at),
                                  problem.substr(value, end - value));
        }
    }
    for (const char* most : {": At Most 1 required", ": At most 1 required"}) {  // CLI11 2.4, 2.6
        if (const std::size_t at = problem.find(most); at != std::string::npos) {
            problem = problem.substr(0, at) + ": is given more than once";
        }
    }
    for (const char* after : {": ", " is required", " excludes "}) {
        if (const std::size_t end = problem.find(after); end != std::string::npos) {
            problem.replace(0, end,
                            as_typed(outline_of(*command, path), typed, problem.substr(0, end)));
            break;
        }
    }
    if (const auto kinds = command->get_subcommands({}); command != &app && !kinds.empty()) {
        const std::vector<std::string> words = app.remaining(true);
        if (!words.empty() && !words[0].starts_with('-')) {
            check_command(outline_of(*command, path), words[0]);
        }
        problem = "name a command: ";
        for (const CLI::App* kind : kinds) {
            const bool last = kind == kinds.back();
            problem += kind == kinds.front() ? "" : last ? " or " : ", ";
            problem += kind->get_name();
        }
    } else if (const std::vector<std::string> words = app.remaining(true); !words.empty()) {
        // If an option is also missing, the misspelling is the cause.
        if (!dynamic_cast<const CLI::ValidationError*>(&error)) {
            problem = describe_extras(outline_of(*command, path), words);
        }
    }
    if (problem.ends_with('?')) return problem;
    return fmt::format("{}; '{} --help' shows the options", problem, path);
}

// The variables of options, which CLI11 does not see while it parses. Left to itself, 2.3 reads
// those of every command, called or not, before it shows a help; 2.4 passes over values that the
// option refuses.
class Variables {
  public:
    explicit Variables(CLI::App& app) { hide(app); }
    Variables(const Variables&) = delete;
    Variables& operator=(const Variables&) = delete;
    ~Variables() {
        for (const auto& [option, name] : hidden_) option->envname(name);
    }

    // For the options of the command that was called, where they are not given.
    void take(CLI::App& app) const {
        for (CLI::Option* option : app.get_options({})) {
            const auto found = hidden_.find(option);
            if (found == hidden_.end() || option->count() > 0) continue;
            const char* const value = std::getenv(found->second.c_str());
            if (!value || !*value) continue;
            option->add_result(value);
            option->run_callback();
            option->clear();  // given() is about the command line
        }
        for (CLI::App* command : app.get_subcommands()) take(*command);
    }

  private:
    void hide(CLI::App& app) {
        for (CLI::Option* option : app.get_options({})) {
            if (option->get_envname().empty()) continue;
            hidden_.emplace(option, option->get_envname());
            option->envname("");
        }
        for (CLI::App* command : app.get_subcommands({})) hide(*command);
    }

    std::map<CLI::Option*, std::string> hidden_;
};

// `millrace --json run` is answered with the order that works.
void check_order(const CommandOutline& program, const std::vector<std::string>& words) {
    const std::string name = words[0].substr(0, words[0].find('='));
    for (const OptionOutline& option : program.options) {
        if (std::ranges::count(option.names(), name) > 0) return;
    }
    for (const std::string& word : words) {
        for (const CommandOutline& command : program.commands) {
            if (word != command.name || command.hidden) continue;
            throw Error::usage(
                {.field = one_line(name),
                 .problem = "an option comes after its command",
                 .remedy = fmt::format("{} {} {}", program.path, command.name, one_line(name))});
        }
    }
}

// Throws Error (usage), or CLI::Success if only help or version was asked for.
void parse(CLI::App& app, const std::vector<std::string>& words) {
    const auto refuse_foreign = [&] {
        const auto [command, path] = called(app);
        const std::string answer = answer_to_foreign(outline_of(*command, path), words);
        if (!answer.empty()) throw Error::usage({.problem = answer});
    };
    if (!words.empty()) {
        const CommandOutline program = outline_of(app, app.get_name());
        if (words[0].starts_with('-')) {
            refuse_foreign();
            check_order(program, words);
        } else {
            check_command(program, words[0]);
        }
    }
    try {
        std::vector<std::string> from_the_back(words.rbegin(), words.rend());  // for CLI11
        const Variables variables(app);
        app.parse(from_the_back);
        variables.take(app);
    } catch (const CLI::Success&) {
        refuse_foreign();  // -hf is no -h
        throw;
    } catch (const CLI::ParseError& error) {
        refuse_foreign();
        throw Error::usage({.problem = describe(app, error, words)});
    }
}

void add_commands(const Command& program, Action& action) {
    add_run(program, action);
    add_chat(program, action);
    add_serve(program, action);
    add_profile(program, action);
    add_info(program, action);
    add_eval(program, action);
    add_tokenize(program, action);
    add_pull(program, action);
    add_convert(program, action);
    add_bench(program, action);
    add_data(program, action);
    add_tokenizer(program, action);
    add_train(program, action);
    add_plan(program, action);
}

int run_main(const Program& program, int argc, char** argv) {
    CLI::App app{program.about};
    app.name(program.name);
    set_help(app);
    app.footer(program.examples);
    app.set_version_flag("--version", version_line(), "Version, commit, compiler and CUDA");
    app.require_subcommand(0, 1);
    Action action;
    const Command commands(app);
    program.add(commands, action);
    add_completion(commands, action);

    // `millrace help run` is `millrace run --help`.
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (!words.empty() && words[0] == "help") {
        words.erase(words.begin());
        words.emplace_back("--help");
    }
    try {
        parse(app, words);
    } catch (const CLI::Success& asked) {  // --help, --version
        std::ostringstream text;
        app.exit(asked, text, text);
        out(text.str());  // throws if it cannot be written
        return 0;
    }
    if (!action) {
        out(app.help());
        return 2;
    }
    return action();
}

}  // namespace

void call(const std::vector<std::string>& words, Caller& caller) {
    CLI::App app;
    app.name("millrace");
    set_help(app);
    Action action;
    add_train(Command(app), action, &caller);
    add_data(Command(app), action, &caller);
    try {
        parse(app, words);
    } catch (const CLI::Success&) {
        throw Error::usage({.field = "help", .problem = "is only available on the command line"});
    }
    MR_CHECK(action, "a command was called");
    try {
        action();
    } catch (const Error& error) {
        const std::string hides = hides_bundled_model(error.info().file);
        if (hides.empty()) throw;
        ErrorInfo info = error.info();
        info.remedy = info.remedy.empty() ? hides : fmt::format("{}; {}", info.remedy, hides);
        throw Error(error.kind(), info);
    }
}

std::vector<OptionOutline> options_of(const std::vector<std::string>& command) {
    CLI::App app;
    set_help(app);
    Action none;
    add_train(Command(app), none);
    add_data(Command(app), none);
    const CLI::App* at = &app;
    for (const std::string& word : command) at = at->get_subcommand(word);
    return outline_of(*at, at->get_name()).options;
}

int run_program(const Program& program, int argc, char** argv) {
    set_program_name(program.name);
    hold_standard_streams();
    // A write returns an error instead, and the command ends cleanly: a closed pipe, a limit on
    // file sizes.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    explain_lost_maps(program.name);
    hold_back_memory();
    try {
        return run_main(program, argc, argv);
    } catch (const Error& error) {
        const std::string hides = hides_bundled_model(error.info().file);
        return fail(error.exit_code(),
                    hides.empty() ? error.what() : fmt::format("{}; {}", error.what(), hides));
    } catch (const OutputClosed&) {
        return 0;
    } catch (const Interrupted&) {
        return InterruptGuard::exit_code();
    } catch (const std::bad_alloc&) {
        // A message that needs no memory.
        err(program.name);
        err(": out of memory; use a smaller model, --ctx or weight type\n");
        return 3;
    } catch (const ContractError& error) {
        return fail(1, fmt::format("internal error, please report it: {}", error.what()));
    } catch (const std::exception& error) {
        return fail(1, error.what());
    }
}

int program(int argc, char** argv) {
    return run_program({.name = "millrace",
                        .about = "Millrace runs, serves and trains transformer language models, "
                                 "and shows where every byte went.",
                        .examples = kExamples,
                        .add = add_commands},
                       argc, argv);
}

}  // namespace mr::cli
