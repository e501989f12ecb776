// The lines that were typed in earlier conversations: a file of the user's own, a line each.
#pragma once

#include <string>
#include <vector>

namespace mr::cli {

inline constexpr std::size_t kHistoryLines = 1000;

// $XDG_STATE_HOME/millrace/chat_history, or the same in ~/.local/state; empty where there is no
// home.
std::string history_path();
// The newest kHistoryLines of the file, oldest first; none where it cannot be read. A history is
// never worth an error.
std::vector<std::string> read_history(const std::string& path);
// Appends a line; makes the folders and the file, for this user's eyes alone. Several conversations
// may do so at a time.
void add_to_history(const std::string& path, const std::string& line);
// Cuts a file that has grown to twice kHistoryLines to that. For the beginning of a conversation
// alone: a line that another one adds at that moment is lost.
void shorten_history(const std::string& path);

}  // namespace mr::cli
