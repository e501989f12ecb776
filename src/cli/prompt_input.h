// The prompt, from wherever it comes.
#pragma once

#include <string>

namespace mr::cli {

// `words` as they are, or what standard input has where they are "-". Where no prompt was given,
// a pipe or a file at standard input is the prompt; a terminal or another device is not read. Of
// what is read, one newline (\n or \r\n) at the end is dropped: it ends a line, and belongs to no
// text.
std::string prompt_text(const std::string& words, bool given);

}  // namespace mr::cli
