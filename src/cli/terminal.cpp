#include "cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "cli/colour.h"
#include "core/error.h"
#include "core/printable.h"
#include "text/columns.h"

namespace mr::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Shared by a signal's handler, on any thread, and the threads that ask. Without locks, which a
// handler must not take.
std::atomic<int> interrupted = 0;  // number of the signal
std::atomic<bool> patient = false;
std::atomic<bool> unbroken = false;
std::atomic<const char*> answer = nullptr;
std::atomic<double> interrupted_at = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free &&
              std::atomic<double>::is_always_lock_free);

// Seconds. Safe in a signal handler.
double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// On a terminal, replaces the line that is being drawn there.
void say_at_once(const char* line) {
    if (stderr_is_terminal()) err("\r\033[K");
    err(line);
    err("\n");
}

extern "C" void on_interrupt(int signal) {
    if (interrupted == signal) {
        if (unbroken) {
            if (answer) say_at_once("still saving");
            return;
        }
        // The same key twice within a second: the answer cannot have been read yet.
        if (answer && now() - interrupted_at < 1) return;
        // End as if there were no handler.
        if (signal != SIGHUP && !(patient && signal == SIGINT)) {
            ::signal(signal, SIG_DFL);
            ::raise(signal);
        }
    }
    if (interrupted == 0 && answer) say_at_once(answer);
    if (interrupted == 0) interrupted_at = now();
    // Ctrl-C does not replace a stronger signal.
    if (interrupted == 0 || interrupted == SIGINT) interrupted = signal;
}

MessageFormat message_format = nullptr;
const char* name = "millrace";

}  // namespace

void out(std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<std::size_t>(written));
        } else if (errno == EPIPE) {
            throw OutputClosed{};
        } else if (errno == EAGAIN) {  // another program made it non-blocking
            pollfd ready{STDOUT_FILENO, POLLOUT, 0};
            ::poll(&ready, 1, -1);
        } else if (errno != EINTR) {
            throw Error::input({.file = "standard output",
                                .problem = fmt::format("cannot write: {}", std::strerror(errno))});
        }
    }
}

void err(std::string_view text) noexcept {
    const int before = errno;
    while (!text.empty()) {
        const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<std::size_t>(written));
        } else if (errno == EAGAIN) {  // another program made it non-blocking: wait a little
            pollfd ready{STDERR_FILENO, POLLOUT, 0};
            if (::poll(&ready, 1, 1000) <= 0) break;
        } else if (errno != EINTR) {
            break;
        }
    }
    errno = before;
}

void note(std::string_view line) {
    if (!stderr_is_terminal()) return;
    err(message_format ? message_format("note", line)
                       : fmt::format("{}\n", painted(STDERR_FILENO, Look::faint, line)));
}

void remark(std::string_view line) {
    err(message_format
            ? message_format("note", line)
            : fmt::format("{} {}\n", painted(STDERR_FILENO, Look::warning, "note:"), line));
}

void complain(std::string_view line) {
    err(message_format
            ? message_format("error", line)
            : fmt::format("{} {}\n", painted(STDERR_FILENO, Look::failure, name + std::string(":")),
                          line));
}

void set_program_name(const char* other) { name = other; }
const char* program_name() { return name; }

void set_message_format(MessageFormat format) { message_format = format; }
bool has_message_format() { return message_format != nullptr; }

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }
bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) == 1; }

std::size_t terminal_columns(int fd) {
    winsize size{};
    return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::size_t columns_to_draw() {
    const std::size_t columns = terminal_columns(STDERR_FILENO);
    return columns > 0 ? std::max<std::size_t>(columns, 2) - 1 : 1000;
}

void redraw(std::string_view line) {
    err(fmt::format("\r\033[K{}", text::cut_to_columns(line, columns_to_draw())));
}

void hold_standard_streams() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
        // open() takes the lowest free number. Opened in the other direction, so that using it
        // still fails like a closed one.
        const int held = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (held >= 0 && held != fd) ::close(held);
    }
}

std::string one_line(std::string_view text) {
    std::string line(text);
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
    for (char& c : line) {
        if (c == '\n' || c == '\r' || c == '\t') c = ' ';
    }
    return printable(line);
}

InterruptGuard::InterruptGuard() {
    interrupted = 0;
    struct sigaction action {};
    action.sa_handler = on_interrupt;  // without SA_RESTART: a read of the terminal returns
    for (const int signal : kSignals) {
        struct sigaction before {};
        sigaction(signal, nullptr, &before);
        // nohup ignores the signal so that the program continues.
        if (signal == SIGINT || before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
    }
}

InterruptGuard::~InterruptGuard() {
    answer = nullptr;
    unbroken = 0;
    for (const int signal : kSignals) {
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        if (now.sa_handler == on_interrupt) ::signal(signal, SIG_DFL);
    }
}

bool InterruptGuard::pending() { return interrupted != 0; }
void InterruptGuard::clear() {
    if (!must_leave()) interrupted = 0;
}
bool InterruptGuard::must_leave() { return interrupted == SIGTERM || interrupted == SIGHUP; }
int InterruptGuard::exit_code() {
    const int signal = interrupted;
    return 128 + (signal ? signal : SIGINT);
}
void InterruptGuard::set_patient(bool on) { patient = on; }
void InterruptGuard::set_unbroken(bool on) { unbroken = on; }
void InterruptGuard::set_answer(const char* line) { answer = line; }

}  // namespace mr::cli
