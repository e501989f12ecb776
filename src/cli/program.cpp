// millrace COMMAND: parses, calls, prints. Exit codes: 0, 1 bad input, 2 usage, 3 device or memory,
// 128 + the signal after Ctrl-C (130), SIGTERM or SIGHUP.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/out_of_memory.h"
#include "millrace/millrace.h"

namespace mr::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  millrace run -p \"Once upon a time\"          a story from the bundled model\n"
    "  millrace run model.gguf -p \"Hello\" -n 100   text from a model of yours\n"
    "  millrace chat model.gguf                    talk with it\n"
    "  millrace info model.gguf                    what it is and what it needs\n"
    "A MODEL is a GGUF file, a Hugging Face folder or a llama2.c .bin; without one, the bundled\n"
    "model is used. 'millrace COMMAND --help' says more.";

int fail(int code, std::string_view message) {
    err(fmt::format("millrace: {}\n", one_line(message)));
    return code;
}

// Insertions, deletions and replacements between two words.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

// CLI11 would call a misspelt command an unexpected argument; a person wants the right one named.
void check_command(const CLI::App& app, std::string_view word) {
    std::string nearest;
    std::size_t best = std::max<std::size_t>(2, word.size() / 2) + 1;
    for (const CLI::App* command : app.get_subcommands({})) {
        if (word == command->get_name()) return;
        const std::size_t distance = edit_distance(word, command->get_name());
        if (distance < best) {
            best = distance;
            nearest = command->get_name();
        }
    }
    throw Error::usage({.field = "command",
                        .value = one_line(word),
                        .problem = "there is no such command",
                        .remedy = nearest.empty()
                                      ? "'millrace --help' lists them"
                                      : fmt::format("did you mean 'millrace {}'?", nearest)});
}

// What was wrong with the arguments, and whose help says more.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App* command = &app;
    std::string path;
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().front();
        path += command->get_name() + " ";
    }
    std::string problem = one_line(error.what());
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {  // which has them from the back
        problem = "not expected:";
        for (const std::string& word : app.remaining(true)) problem += " " + one_line(word);
    }
    if (const auto kinds = command->get_subcommands({}); command != &app && !kinds.empty()) {
        problem = "what to do is missing:";
        for (const CLI::App* kind : kinds) problem += " " + kind->get_name();
    }
    return fmt::format("{}; 'millrace {}--help' shows the options", problem, path);
}

int run_main(int argc, char** argv) {
    CLI::App app{"Millrace runs transformer language models, and shows where every byte went."};
    app.name("millrace");
    app.footer(kExamples);
    app.set_version_flag("--version", fmt::format("millrace {}", millrace::version()));
    app.require_subcommand(0, 1);
    Action action;
    const Command program(app);
    add_run(program, action);
    add_chat(program, action);
    add_profile(program, action);
    add_info(program, action);
    add_eval(program, action);
    add_tokenize(program, action);
    add_convert(program, action);
    add_bench(program, action);
    add_tokenizer(program, action);
    add_train(program, action);
    add_data(program, action);

    // `millrace help run` is `millrace run --help`.
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (!words.empty() && words[0] == "help") {
        words.erase(words.begin());
        words.emplace_back("--help");
    }
    if (!words.empty() && !words[0].starts_with('-')) check_command(app, words[0]);
    try {
        std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
        app.parse(words);
    } catch (const CLI::Success& asked) {  // --help, --version
        std::ostringstream text;
        app.exit(asked, text, text);
        out(text.str());  // which tells where it cannot be written
        return 0;
    } catch (const CLI::ParseError& error) {
        return fail(2, describe(app, error));
    }
    if (!action) {
        out(app.help());
        return 2;
    }
    return action();
}

}  // namespace

int program(int argc, char** argv) {
    hold_standard_streams();
    // A write says so instead, and the command ends cleanly: a closed pipe, a limit on file sizes.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    explain_lost_maps("millrace");
    hold_back_memory();
    try {
        return run_main(argc, argv);
    } catch (const Error& error) {
        return fail(error.exit_code(), error.what());
    } catch (const OutputClosed&) {
        return 0;
    } catch (const Interrupted&) {
        return InterruptGuard::exit_code();
    } catch (const std::bad_alloc&) {
        // Words that take no memory.
        err("millrace: out of memory; use a smaller model, --ctx or weight type\n");
        return 3;
    } catch (const ContractError& error) {
        return fail(1, fmt::format("internal error, please report it: {}", error.what()));
    } catch (const std::exception& error) {
        return fail(1, error.what());
    }
}

}  // namespace mr::cli
