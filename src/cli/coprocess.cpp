#include "cli/coprocess.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

extern char** environ;

namespace mr::cli {
namespace {

[[noreturn]] void refuse(const std::string& command, int error) {
    throw Error::input({.field = "program",
                        .value = command,
                        .problem = std::string("could not be started: ") + std::strerror(error)});
}

}  // namespace

// One socket is its input and its output: if the program has ended, send() returns an error, where
// a pipe would raise a signal.
Coprocess::Coprocess(const std::string& command) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) refuse(command, errno);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string shell = "sh", option = "-c", text = command;
    char* arguments[] = {shell.data(), option.data(), text.data(), nullptr};
    const int error = posix_spawn(&process_, "/bin/sh", &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    socket_ = ends[0];
    if (error != 0) {
        close(socket_);
        refuse(command, error);
    }
}

Coprocess::~Coprocess() {
    close(socket_);  // end of its input
    while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

bool Coprocess::say(const std::string& line) {
    const std::string text = line + "\n";
    for (std::size_t sent = 0; sent < text.size();) {
        const ssize_t n = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        sent += static_cast<std::size_t>(n);
    }
    return true;
}

std::optional<std::string> Coprocess::hear() {
    while (true) {
        if (const std::size_t end = read_.find('\n'); end != std::string::npos) {
            const std::string answer = read_.substr(0, end);
            read_.erase(0, end + 1);
            return answer;
        }
        char piece[4096];
        const ssize_t n = recv(socket_, piece, sizeof piece, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return std::nullopt;
        read_.append(piece, static_cast<std::size_t>(n));
    }
}

}  // namespace mr::cli
