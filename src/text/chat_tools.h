// Tools in conversations: which templates know them, and what is written for those that do not.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/chat_writer.h"
#include "text/grammar/tools.h"

namespace mr::text {

struct ToolTemplate {
    bool knows = false;  // it shows the tools that it is given
    // How its model writes calls; one that knows nothing of tools is told of the plain form.
    grammar::ToolForm form{};
};
// Found out by giving it one.
ToolTemplate try_tools(const Tokenizer& tokenizer, const ChatOptions& options);

// The conversation for a template that does not know tools: calls and results as plain text.
// `tools`: OpenAI's list as JSON, which a system message describes; empty: none.
std::vector<ChatMessage> without_tools(std::span<const ChatMessage> messages,
                                       const std::string& tools, const grammar::ToolChoice& choice);

}  // namespace mr::text
