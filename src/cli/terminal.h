// Standard output, the progress line and Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/progress.h"

namespace mr::cli {

// The reader of our output has gone (`millrace run | head`): stop, quietly.
struct OutputClosed {};
// Ctrl-C or the like while something was loaded or written: clean up and leave.
struct Interrupted {};

// Writes all of it to standard output at once. Throws OutputClosed, or Error where it cannot be
// written (a full disk).
void out(std::string_view text);

// Writes to standard error, the only way there. It never throws and never ends the program: a
// closed terminal, a reader that has gone or a full disk behind it loses the words, not the work.
// A signal's handler may call it.
void err(std::string_view text) noexcept;
// One line on standard error, where a person looks at it (a terminal); nothing in a pipe.
void note(std::string_view line);
bool stderr_is_terminal();
bool stdin_is_terminal();
// Called first of all: where standard input, output or error are closed (`2>&-`) their numbers are
// taken, so that no file that is opened later gets what was meant for them.
void hold_standard_streams();

// `text` on one line, with nothing in it that a terminal would obey (core/printable.h).
std::string one_line(std::string_view text);

// While one lives, Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag instead of ending the program.
// Ctrl-C or SIGTERM again ends it, unless set_patient() or set_unbroken() say otherwise. SIGHUP
// again does not: of a terminal that is closed the system tells once, and its shell once more.
class InterruptGuard {
  public:
    InterruptGuard();
    ~InterruptGuard();
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

    static bool pending();
    static void clear();
    // SIGTERM or SIGHUP came: not only what is going on should end, but the program.
    static bool must_leave();
    // What the program exits with after the signal that came: 128 + its number.
    static int exit_code();
    // While set, Ctrl-C does not end the program however often it comes.
    static void set_patient(bool patient);
    // While set, no signal ends the program however often it comes: something is being written that
    // is worth nothing in part.
    static void set_unbroken(bool unbroken);
    // What is said the moment that the first signal comes; null: nothing. Must live as long. Where
    // there is one, the same signal again within a second is the same press of a key.
    static void set_answer(const char* line);
};

// A line on the terminal that is redrawn as work goes on and removed at the end. In a pipe it draws
// nothing. Where an InterruptGuard lives, Ctrl-C leaves through it as Interrupted.
class ProgressLine {
  public:
    ProgressLine();
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    void update(std::string_view what, std::uint64_t done, std::uint64_t total);
    void remove();
    // What the layers below call. The line must outlive it.
    Progress callback();

  private:
    bool drawn_ = false;
    bool enabled_;
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace mr::cli
