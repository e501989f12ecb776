// The history of messages typed in earlier conversations: a private file, a row each. The newlines
// of a message of several lines are written as \r.
#pragma once

#include <string>
#include <vector>

namespace mr::cli {

inline constexpr std::size_t kHistoryLines = 1000;

// $XDG_STATE_HOME/millrace/chat_history, or the same in ~/.local/state; empty if there is no
// home.
std::string history_path();
// The newest kHistoryLines of the file, oldest first; none if it cannot be read. Never
// throws.
std::vector<std::string> read_history(const std::string& path);
// Appends a line; creates the folders and the file, readable only by this user. Several
// conversations may do so at a time.
void add_to_history(const std::string& path, const std::string& line);
// Cuts a file that has grown to twice kHistoryLines to that. Only for the start of a conversation:
// a line that another one adds at that moment is lost.
void shorten_history(const std::string& path);

}  // namespace mr::cli
