// Explains SIGBUS: a page of a mapped file is gone. Everything here runs inside the signal handler,
// so it may only make system calls.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "core/mapped_file.h"

namespace mr {
namespace {

const char* program_name = "";
std::atomic_flag told = ATOMIC_FLAG_INIT;

void put(const char* text) {
    std::size_t left = std::strlen(text);
    while (left > 0) {
        const ssize_t count = ::write(STDERR_FILENO, text, left);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return;
        text += count;
        left -= static_cast<std::size_t>(count);
    }
}

std::uintptr_t hex(const char*& at) {
    std::uintptr_t value = 0;
    for (;; ++at) {
        const int digit = *at >= '0' && *at <= '9'   ? *at - '0'
                          : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                                                     : -1;
        if (digit < 0) return value;
        value = value * 16 + static_cast<std::uintptr_t>(digit);
    }
}

// The path of a line of /proc/self/maps ("from-to rwxp offset device inode path"), if the line's
// range holds `address` and belongs to a file; else null.
const char* path_of(const char* line, std::uintptr_t address) {
    const std::uintptr_t from = hex(line);
    if (*line != '-') return nullptr;
    const std::uintptr_t to = hex(++line);
    if (address < from || address >= to) return nullptr;
    return std::strchr(line, '/');
}

// Finds the file whose map holds `address`, into `path`; false: none.
bool find_file(std::uintptr_t address, char* path, std::size_t room) {
    const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char line[4352];  // the longest path, and the fields before it
    std::size_t length = 0;
    char buffer[512];
    bool found = false;
    while (!found) {
        const ssize_t count = ::read(fd, buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        for (ssize_t i = 0; i < count && !found; ++i) {
            if (buffer[i] != '\n') {
                if (length + 1 < sizeof line) line[length++] = buffer[i];
                continue;
            }
            line[length] = '\0';
            length = 0;
            if (const char* file = path_of(line, address)) {
                std::strncpy(path, file, room - 1);
                path[room - 1] = '\0';
                found = true;
            }
        }
    }
    ::close(fd);
    return found;
}

void on_bus_error(int signal, siginfo_t* info, void*) {
    static char path[4096];
    if (told.test_and_set()) {  // another thread is already reporting
        for (;;) ::pause();
    }
    if (!find_file(reinterpret_cast<std::uintptr_t>(info->si_addr), path, sizeof path)) {
        // Not a mapped file: fall back to the default action.
        struct sigaction usual {};
        usual.sa_handler = SIG_DFL;
        ::sigaction(signal, &usual, nullptr);
        told.clear();
        ::raise(signal);  // delivered when this handler returns
        return;
    }
    put(program_name);
    put(": ");
    put(path);
    put(": the file was truncated, or its disk failed, while in use; do not change a file that is "
        "in use\n");
    ::_exit(1);
}

}  // namespace

void explain_lost_maps(const char* program) {
    program_name = program;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace mr
