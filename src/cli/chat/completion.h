// What Tab offers in a conversation.
#pragma once

#include <string_view>

#include "cli/chat/line_reader.h"

namespace mr::cli {

// For a line that begins with a slash: commands, settings and their values, files and models.
Completions complete_command(std::string_view line);

}  // namespace mr::cli
