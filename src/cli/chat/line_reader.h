// Lines of standard input, and the messages that they make.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mr::cli {

// How a line can go on at its end: each of `words` in place of what follows `begin`.
struct Completions {
    std::size_t begin = 0;
    std::vector<std::string> words{};
};
using Completer = std::function<Completions(std::string_view line)>;

// A line as it was entered. What was pasted may hold newlines.
struct InputLine {
    std::string text{};
    std::vector<std::string> pasted{};  // the pasted parts, as they were before any editing
};

class LineReader {
  public:
    enum class Outcome { line, end, interrupted };

    virtual ~LineReader() = default;
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;

    // Shows a prompt on a terminal; `more`: the line goes on with a message. `interrupted`: a
    // signal came (InterruptGuard), and `line` is what was typed, if known: without line editing
    // the terminal discards it.
    virtual Outcome next(InputLine& line, bool more) = 0;
    // For the history.
    virtual void remember(const std::string& /*message*/) {}

  protected:
    LineReader() = default;
};

inline constexpr const char* kChatPrompt = "> ";
inline constexpr const char* kMorePrompt = "... ";
// Far more than a context holds.
inline constexpr std::size_t kMostMessageMiB = 16;

// With line editing and a history (history_file.h) if standard input and output are a terminal and
// the build has libedit.
std::unique_ptr<LineReader> make_line_reader(Completer completer);
// Null if lines cannot be edited.
std::unique_ptr<LineReader> make_edited_line_reader(Completer completer);

// What a person says: a line, or several of them.
struct Message {
    std::string text{};
    // A line that may be a command. What has several lines is for the model, also where it begins
    // with a slash, unless it is a command with a text between triple quotes.
    bool one_line = true;
};

// The next message. A line that ends with a backslash goes on with the next one (a doubled one
// does not), and one that begins with three quotation marks, or a command's words that do, up to a
// line that ends with three. The end of the input ends a message, too. The backslash at the end of
// a pasted text and quotation marks at its ends mean nothing: they are a part of the message.
LineReader::Outcome next_message(LineReader& reader, Message& to);

}  // namespace mr::cli
