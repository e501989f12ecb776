// Chat commands: lines that begin with a slash are for the program, not the model.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "decode/conversation.h"

namespace mr::cli {

// The state that the commands read and change.
struct ChatState {
    decode::Conversation& conversation;
    decode::GenerateOptions& generate;
    // What /set and /seed changed, in order: another model begins with its own values, and these.
    std::vector<std::pair<std::string, std::string>>& settings;
    std::string model;
    std::int64_t context = 0, vocab = 0;  // of the model, in tokens
    model::Stream stream{};               // set if the conversation streams
    // Over all answers so far.
    std::int64_t answers = 0, tokens = 0, last_prompt = 0;
    // Tokens without the first of each answer, which comes with the prompt, and their time.
    std::int64_t decoded = 0;
    double seconds = 0;
    std::string unanswered{};  // the last message, where it got no answer
};

enum class Slash {
    message,
    obeyed,
    leave,
    again,  // answer the last message anew: `line`, or where that is empty the last turn's
    model,  // go on with the model that `line` names
};

// `line` is a message if it does not begin with a slash, or begins with two: then one is removed.
// Output of commands goes to standard error; an unknown command is explained there. Throws Error if
// a command fails.
Slash obey(ChatState& state, std::string& line);
// "/help", "/set", ...
std::vector<std::string> slash_commands();
// Sets a sampling option, and what belongs to it: -n -1 means the whole context. Throws Error
// (usage) for what the model cannot do, and changes nothing.
void set_option_of_chat(ChatState& state, const std::string& name, const std::string& value);

}  // namespace mr::cli
