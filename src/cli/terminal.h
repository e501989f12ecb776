// Standard output, standard error, and Ctrl-C; with progress_line.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cli/progress_line.h"

namespace mr::cli {

// The reader of our output has gone (`millrace run | head`): end quietly.
struct OutputClosed {};
// Ctrl-C or another signal during loading or writing: clean up and end.
struct Interrupted {};

// Writes all of it to standard output at once. Throws OutputClosed, or Error if it cannot be
// written (a full disk).
void out(std::string_view text);

// Writes to standard error; all messages go through this. It never throws and never ends the
// program: if the terminal is closed, the reader has gone or the disk is full, the message is lost,
// not the work. Safe in a signal handler.
void err(std::string_view text) noexcept;
// One line on standard error if it is a terminal; nothing in a pipe.
void note(std::string_view line);
// "note: LINE" on standard error: what a reader of a log wants to know, too.
void remark(std::string_view line);
// "millrace: LINE" on standard error: why the program ends.
void complain(std::string_view line);
// The name before such lines, if it is another program's.
void set_program_name(const char* name);
const char* program_name();
// From now on the lines of these three on standard error are `format(kind, LINE)`, with the kinds
// "note" and "error", and there are no progress lines: for a log that a program reads. The format
// ends its line itself.
using MessageFormat = std::string (*)(std::string_view kind, std::string_view line);
void set_message_format(MessageFormat format);
bool has_message_format();
bool stderr_is_terminal();
bool stdin_is_terminal();
// The width of the terminal at this descriptor; 0: it is none, or does not say.
std::size_t terminal_columns(int fd);
// Room for a line that is redrawn. Not the last column: some terminals go on to the next row as
// soon as it is full.
std::size_t columns_to_draw();
// Draws a line on standard error, a terminal, over the one drawn before. It is cut to the
// terminal's present width: a longer one would leave a row behind with every redraw.
void redraw(std::string_view line);
// Call first: if standard input, output or error are closed (`2>&-`), occupies their numbers, so
// that no file opened later receives what was meant for them.
void hold_standard_streams();

// `text` on one line, with nothing in it that a terminal would obey (core/printable.h).
std::string one_line(std::string_view text);

// During its lifetime, Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag instead of ending the
// program. A second Ctrl-C or SIGTERM ends it, unless set_patient() or set_unbroken() say
// otherwise. A second SIGHUP does not: when a terminal is closed, the system sends one, and its
// shell another.
class InterruptGuard {
  public:
    InterruptGuard();
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

    static bool pending();
    static void clear();
    // SIGTERM or SIGHUP came: the program should end, not only the current work.
    static bool must_leave();
    // The exit code after the signal that came: 128 + its number.
    static int exit_code();
    // While set, Ctrl-C never ends the program.
    static void set_patient(bool patient);
    // While set, no signal ends the program: a write is in progress that is useless in
    // part.
    static void set_unbroken(bool unbroken);
    // A message for the first signal; null: none. Must outlive its use. If set, the same signal
    // within a second counts as the same key press.
    static void set_answer(const char* line);
};

}  // namespace mr::cli
