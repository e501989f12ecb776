#include "cli/chat/slash.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "cli/chat/saved_chat.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/nearest.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct Known {
    const char* name;
    const char* argument;
    const char* about;
};
constexpr Known kCommands[] = {
    {"/help", "", "this list"},
    {"/clear", "", "forget the conversation; the system prompt stays"},
    {"/system", "[WORDS]", "show the system prompt, or set it for the answers to come"},
    {"/seed", "[N]", "show the seed, or set it for the answers to come"},
    {"/save", "FILE", "write the conversation to a file"},
    {"/load", "FILE", "continue a conversation from a file"},
    {"/stats", "", "tokens, speed, and how full the context is"},
    {"/exit", "", "leave; also /bye and Ctrl-D"},
    {"/bye", "", nullptr},
};

void say(const std::string& line) { err(line + "\n"); }

void help() {
    std::string text;
    for (const Known& known : kCommands) {
        if (!known.about) continue;
        text += fmt::format("  {:<16}{}\n", fmt::format("{} {}", known.name, known.argument),
                            known.about);
    }
    err(text + "A message that begins with a slash is written with two: //usr is a folder.\n");
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
    state.generate.sampling.seed = value;
}

std::string need(const char* command, const std::string& argument) {
    if (!argument.empty()) return argument;
    throw Error::usage({.field = command, .problem = "needs the name of a file"});
}

void load(ChatState& state, const std::string& path) {
    state.conversation.restore(load_chat(path));
    const auto& messages = state.conversation.messages();
    say(fmt::format("{} messages of {}; the last: {}", messages.size(), one_line(path),
                    messages.empty() ? "none" : one_line(messages.back().content.substr(0, 400))));
}

[[noreturn]] void refuse_word(const std::string& word) {
    std::vector<std::string> names;
    for (const Known& known : kCommands) names.emplace_back(known.name);
    const std::string near = nearest(word, names);
    throw Error::usage({.field = one_line(word),
                        .problem = near.empty()
                                       ? "unknown command"
                                       : fmt::format("unknown command; did you mean {}?", near),
                        .remedy = "/help lists them, and a message that begins with a slash is "
                                  "written with two"});
}

}  // namespace

Slash obey(ChatState& state, std::string& line) {
    if (!line.starts_with('/')) return Slash::message;
    if (line.starts_with("//")) {
        line.erase(0, 1);
        return Slash::message;
    }
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    const std::string word = line.substr(0, end);
    const std::size_t from = line.find_first_not_of(" \t", end);
    std::string argument = from == std::string::npos ? "" : line.substr(from);
    while (argument.ends_with(' ') || argument.ends_with('\t')) argument.pop_back();
    if (word == "/exit" || word == "/bye") return Slash::leave;
    if (word == "/help") {
        help();
    } else if (word == "/clear") {
        state.conversation.clear();
    } else if (word == "/system") {
        system_prompt(state, argument);
    } else if (word == "/seed") {
        seed(state, argument);
    } else if (word == "/save") {
        save_chat(need("/save", argument), state.model, state.conversation.messages());
        say(fmt::format("saved {}", one_line(argument)));
    } else if (word == "/load") {
        load(state, need("/load", argument));
    } else if (word == "/stats") {
        stats(state);
    } else {
        refuse_word(word);
    }
    return Slash::obeyed;
}

}  // namespace mr::cli
