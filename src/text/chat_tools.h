// Tools in conversations: which templates support them, and the text for those that do not.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/chat_writer.h"
#include "text/grammar/tools.h"

namespace mr::text {

struct ToolTemplate {
    bool knows = false;  // it shows the tools it is given
    // How the model writes calls; without support for tools, the plain form.
    grammar::ToolForm form{};
};
// Renders a conversation with a tool to find out.
ToolTemplate try_tools(const Tokenizer& tokenizer, const ChatOptions& options);

// The conversation for a template without support for tools: calls and results as plain text.
// `tools`: OpenAI's list as JSON, described in a system message; empty: none.
std::vector<ChatMessage> without_tools(std::span<const ChatMessage> messages,
                                       const std::string& tools, const grammar::ToolChoice& choice);

}  // namespace mr::text
