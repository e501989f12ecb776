// What a person may say to the program instead of the model: lines that begin with a slash.
#pragma once

#include <string>

#include "decode/conversation.h"

namespace mr::cli {

// What the commands look at and change.
struct ChatState {
    decode::Conversation& conversation;
    decode::GenerateOptions& generate;
    std::string model;
    std::int64_t context = 0;
    model::Stream stream{};  // where the conversation has no end
    // Of all answers so far.
    std::int64_t answers = 0, tokens = 0, last_prompt = 0;
    // Tokens without the first of each, which comes with the prompt, and the time for them.
    std::int64_t decoded = 0;
    double seconds = 0;
};

enum class Slash { message, obeyed, leave };

// `line` is a message where it does not begin with a slash, or with two: then one is taken off.
// What a command has to say goes to standard error; a word that is none is explained there. Throws
// Error where a command cannot be obeyed.
Slash obey(ChatState& state, std::string& line);

}  // namespace mr::cli
