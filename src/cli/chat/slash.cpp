#include "cli/chat/slash.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "cli/chat/saved_chat.h"
#include "cli/chat/settings.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/nearest.h"
#include "hub/cache.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct Known {
    const char* name;
    const char* argument;
    const char* about;
};
constexpr Known kCommands[] = {
    {"/help", "", "this list; also /?"},
    {"/clear", "", "forget the conversation; the system prompt stays"},
    {"/regen", "", "answer the last message anew, with the next seed"},
    {"/undo", "", "take the last message and its answer back"},
    {"/system", "[WORDS]", "show the system prompt, or set it for the answers to come"},
    {"/set", "[NAME [VALUE]]", "show the sampling options, or set one: /set temperature 0.7"},
    {"/seed", "[N]", "show the seed, or set it for the answers to come"},
    {"/model", "[NAME]", "show the model, or go on with another; the conversation stays"},
    {"/save", "FILE", "write the conversation to a file"},
    {"/load", "FILE", "continue a conversation from a file"},
    {"/stats", "", "tokens, speed, and how full the context is"},
    {"/exit", "", "leave; also /bye and Ctrl-D"},
    {"/bye", "", nullptr},
    {"/?", "", nullptr},
};

void say(const std::string& line) { err(line + "\n"); }

void help() {
    std::string text;
    for (const Known& known : kCommands) {
        if (!known.about) continue;
        text += fmt::format("  {:<22}{}\n", fmt::format("{} {}", known.name, known.argument),
                            known.about);
    }
    err(text +
        "A message that begins with a slash is written with two: //usr is a folder.\n"
        "Several lines: end them with \\, or put \"\"\" before the first and after the last. What "
        "is pasted is one\nmessage. Tab completes commands, settings and file names.\n");
}

void stats(const ChatState& state) {
    const auto& messages = state.conversation.messages();
    const std::size_t system = !messages.empty() && messages[0].role == "system" ? 1 : 0;
    const int forgotten = state.conversation.forgotten();
    const std::size_t count = (messages.size() - system) / 2;
    const std::string turns = observe::counted(count, "turn");
    const std::string began =
        count == 0 ? "" : fmt::format("; the last answer began at token {}", state.last_prompt);
    if (state.stream) {
        say(fmt::format(
            "{} in the history{}; in view are the first {} tokens and the latest {}, {} left the "
            "window",
            turns, began, state.stream.sinks, state.stream.window, state.conversation.evicted()));
    } else {
        say(fmt::format("{} in the history{}{}{}", turns,
                        forgotten ? fmt::format(", {} forgotten", forgotten) : "", began,
                        began.empty() ? "" : fmt::format(" of {}", state.context)));
    }
    say(fmt::format("{}, {}, {:.1f} tok/s; seed {}", observe::counted(state.answers, "answer"),
                    observe::counted(state.tokens, "token"),
                    state.seconds > 0 ? static_cast<double>(state.decoded) / state.seconds : 0.0,
                    state.generate.sampling.seed));
}

void system_prompt(ChatState& state, const std::string& words) {
    const auto& messages = state.conversation.messages();
    if (words.empty()) {
        const bool there = !messages.empty() && messages[0].role == "system";
        return say(there ? one_line(messages[0].content) : "there is no system prompt");
    }
    state.conversation.set_system(words);
}

void seed(ChatState& state, const std::string& word) {
    if (word.empty()) return say(fmt::format("seed {}", state.generate.sampling.seed));
    std::uint64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc{} || rest != end) {
        throw Error::usage(
            {.field = "/seed", .value = one_line(word), .problem = "is not a whole number"});
    }
    set_option_of_chat(state, "seed", fmt::format("{}", value));
}

// NAME VALUE, NAME=VALUE, or NAME alone, which shows it.
void setting(ChatState& state, std::string argument) {
    if (argument.empty()) return err(settings_text(state.generate));
    const std::size_t end = std::min(argument.find_first_of(" \t="), argument.size());
    const std::string name = argument.substr(0, end);
    std::size_t from = std::min(argument.find_first_not_of(" \t", end), argument.size());
    if (argument.substr(from).starts_with('=')) {
        from = std::min(argument.find_first_not_of(" \t", from + 1), argument.size());
    }
    const std::string value = argument.substr(from);
    if (!value.empty()) set_option_of_chat(state, name, value);
    err(settings_text(state.generate, name));
}

Slash again(ChatState& state, std::string& line) {
    line = state.unanswered;
    if (line.empty() && state.conversation.turns() == 0) {
        throw Error::usage({.field = "/regen", .problem = "there is no answer yet"});
    }
    ++state.generate.sampling.seed;
    note(state.generate.sampling.temperature > 0
             ? fmt::format("(seed {})", state.generate.sampling.seed)
             : "(at temperature 0 the answer will be the same: /set temperature 0.8)");
    return Slash::again;
}

void undo(ChatState& state) {
    // A message without an answer came after the turns.
    const std::optional<std::string> question =
        state.unanswered.empty() ? state.conversation.undo()
                                 : std::exchange(state.unanswered, std::string());
    if (!question)
        throw Error::usage({.field = "/undo", .problem = "there is no turn to take back"});
    say(fmt::format("took back: {}", one_line(question->substr(0, 400))));
}

std::string need_file(const char* command, const std::string& argument) {
    if (!argument.empty()) return hub::with_home(argument);
    throw Error::usage({.field = command, .problem = "needs the name of a file"});
}

// Words after a command that takes none: the person expects more than it does.
void refuse_words(const std::string& command, const std::string& words) {
    const auto* const known =
        std::ranges::find_if(kCommands, [&](const Known& one) { return one.name == command; });
    if (words.empty() || known == std::end(kCommands) || *known->argument != '\0') return;
    throw Error::usage({.field = command,
                        .value = one_line(words),
                        .problem = "the command takes no words",
                        .remedy = fmt::format("enter {} alone", command)});
}

void load(ChatState& state, const std::string& path) {
    state.conversation.restore(load_chat(path));
    state.unanswered.clear();
    const auto& messages = state.conversation.messages();
    say(fmt::format("{} messages of {}; the last: {}", messages.size(), one_line(path),
                    messages.empty() ? "none" : one_line(messages.back().content.substr(0, 400))));
}

[[noreturn]] void refuse_word(const std::string& word) {
    // Every short command is near to a single slash.
    const std::string near = word.size() < 2 ? "" : nearest(word, slash_commands());
    throw Error::usage({.field = one_line(word),
                        .problem = near.empty()
                                       ? "unknown command"
                                       : fmt::format("unknown command; did you mean {}?", near),
                        .remedy = "/help lists them, and a message that begins with a slash is "
                                  "written with two"});
}

}  // namespace

std::vector<std::string> slash_commands() {
    std::vector<std::string> names;
    for (const Known& known : kCommands) names.emplace_back(known.name);
    return names;
}

void set_option_of_chat(ChatState& state, const std::string& name, const std::string& value) {
    decode::GenerateOptions changed = state.generate;
    change_setting(changed, name, value);
    for (std::size_t i = state.generate.stop_ids.size(); i < changed.stop_ids.size(); ++i) {
        const std::int32_t id = changed.stop_ids[i];
        if (id >= 0 && id < state.vocab) continue;
        throw Error::usage({.field = "/set stop-id",
                            .value = fmt::format("{}", id),
                            .problem = "is not a token of the model",
                            .remedy = fmt::format("its tokens are 0 to {}", state.vocab - 1)});
    }
    state.generate = std::move(changed);
    if (state.generate.max_tokens < 0) {
        state.generate.max_tokens =
            state.stream ? std::numeric_limits<int>::max() - 1 : static_cast<int>(state.context);
    }
    state.settings.emplace_back(name, value);
}

Slash obey(ChatState& state, std::string& line) {
    if (!line.starts_with('/')) return Slash::message;
    if (line.starts_with("//")) {
        line.erase(0, 1);
        return Slash::message;
    }
    const std::size_t end = std::min(line.find_first_of(" \t\n"), line.size());
    const std::string word = line.substr(0, end);
    const std::size_t from = line.find_first_not_of(" \t\n", end);
    std::string argument = from == std::string::npos ? "" : line.substr(from);
    while (argument.ends_with(' ') || argument.ends_with('\t')) argument.pop_back();
    if (word == "/exit" || word == "/bye") return Slash::leave;
    refuse_words(word, argument);
    if (word == "/regen") return again(state, line);
    if (word == "/help" || word == "/?") {
        help();
    } else if (word == "/clear") {
        state.conversation.clear();
        state.unanswered.clear();
    } else if (word == "/undo") {
        undo(state);
    } else if (word == "/set") {
        setting(state, argument);
    } else if (word == "/model") {
        line = hub::with_home(argument);
        if (!line.empty()) return Slash::model;
        say(fmt::format("{}: {}", one_line(state.model),
                        state.conversation.writer().continues_texts()
                            ? "continues texts"
                            : state.conversation.writer().name()));
    } else if (word == "/system") {
        system_prompt(state, argument);
    } else if (word == "/seed") {
        seed(state, argument);
    } else if (word == "/save") {
        const std::string path = need_file("/save", argument);
        save_chat(path, state.model, state.conversation.messages());
        say(fmt::format("saved {}", one_line(path)));
    } else if (word == "/load") {
        load(state, need_file("/load", argument));
    } else if (word == "/stats") {
        stats(state);
    } else {
        refuse_word(word);
    }
    return Slash::obeyed;
}

}  // namespace mr::cli
