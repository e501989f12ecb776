// The prompt, from the command line or standard input.
#pragma once

#include <string>

namespace mr::cli {

// All of standard input if it is a pipe or a file, not a terminal or another device; empty
// otherwise. If nothing comes for two seconds, says that it waits for `what` (a prompt), and how to
// go without.
std::string piped_text(const char* what, const char* otherwise);

// Returns `words` unchanged, or standard input if they are "-". If no prompt was given, a pipe
// or a file at standard input is the prompt; a terminal or another device is not read. One
// newline (\n or \r\n) at the end of the input is dropped: it ends a line and is not part of the
// text.
std::string prompt_text(const std::string& words, bool given);

}  // namespace mr::cli
