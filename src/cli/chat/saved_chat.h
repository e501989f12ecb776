// A conversation in a file: {"model": ..., "messages": [{"role": ..., "content": ...}, ...]}.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace mr::cli {

// Replaces a saved conversation; throws Error (input) where the file is there and is something
// else, or cannot be written.
void save_chat(const std::string& path, const std::string& model,
               const std::vector<text::ChatMessage>& messages);
// Throws Error (input) for anything but a conversation: a system message or none, then questions of
// the user and answers of the assistant in turns.
std::vector<text::ChatMessage> load_chat(const std::string& path);

}  // namespace mr::cli
