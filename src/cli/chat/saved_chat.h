// A conversation in a file: {"model": ..., "messages": [{"role": ..., "content": ...}, ...]}.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace mr::cli {

// Replaces a saved conversation; throws Error (input) if the file exists and is something else, or
// cannot be written.
void save_chat(const std::string& path, const std::string& model,
               const std::vector<text::ChatMessage>& messages);
// Throws Error (input) for anything but a conversation: an optional system message, then
// alternating user and assistant messages.
std::vector<text::ChatMessage> load_chat(const std::string& path);

}  // namespace mr::cli
