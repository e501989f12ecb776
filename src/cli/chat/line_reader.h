// Lines of standard input, one turn of a conversation each.
#pragma once

#include <memory>
#include <string>

namespace mr::cli {

class LineReader {
  public:
    enum class Outcome { line, end, interrupted };

    virtual ~LineReader() = default;
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;

    // Shows a prompt on a terminal. `interrupted`: a signal came (InterruptGuard), and `line` is
    // what was typed, if known: without line editing the terminal discards it.
    virtual Outcome next(std::string& line) = 0;

  protected:
    LineReader() = default;
};

inline constexpr const char* kChatPrompt = "> ";

// With line editing and a history (history_file.h) if standard input and output are a terminal and
// the build has libedit.
std::unique_ptr<LineReader> make_line_reader();
// Null if lines cannot be edited.
std::unique_ptr<LineReader> make_edited_line_reader();

}  // namespace mr::cli
