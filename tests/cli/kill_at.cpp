// Runs a program and kills it right before its N-th system call that changes files, on whatever
// thread. Only for tests: kill_at N PROGRAM ARGUMENT...
// Exit code 0: it was killed; 10: it ended before by itself, with exit code 0; 11: with another;
// 77: processes cannot be traced here.
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace {

bool changes_files(long number) {
    static const std::set<long> kCalls = {
#ifdef SYS_rename
        SYS_rename,
#endif
#ifdef SYS_renameat
        SYS_renameat,
#endif
#ifdef SYS_unlink
        SYS_unlink,
#endif
#ifdef SYS_rmdir
        SYS_rmdir,
#endif
#ifdef SYS_mkdir
        SYS_mkdir,
#endif
#ifdef SYS_link
        SYS_link,
#endif
#ifdef SYS_open
        SYS_open,
#endif
#ifdef SYS_chmod
        SYS_chmod,
#endif
        SYS_renameat2, SYS_unlinkat, SYS_mkdirat,  SYS_linkat, SYS_symlinkat,
        SYS_openat,    SYS_write,    SYS_pwrite64, SYS_fsync,  SYS_fchmod,
        SYS_fchmodat,  SYS_fchown,   SYS_ftruncate};
    return kCalls.contains(number);
}

// Whether the call could change something: an open for reading cannot.
bool counts(const __ptrace_syscall_info& info) {
    constexpr unsigned long kWrites = 3;  // O_WRONLY | O_RDWR
    const auto number = static_cast<long>(info.entry.nr);
    if (number == SYS_openat) return (info.entry.args[2] & kWrites) != 0;
#ifdef SYS_open
    if (number == SYS_open) return (info.entry.args[1] & kWrites) != 0;
#endif
    return changes_files(number) && (number != SYS_write || info.entry.args[0] > 2);
}

int trace(pid_t child, long left) {
    std::set<pid_t> started;
    while (true) {
        int status = 0;
        const pid_t thread = ::waitpid(-1, &status, __WALL);
        if (thread < 0) return 11;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 10 : 11;
            continue;
        }
        if (!WIFSTOPPED(status)) continue;
        int pass = 0;
        const int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            __ptrace_syscall_info info{};
            ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
            if (info.op == PTRACE_SYSCALL_INFO_ENTRY && counts(info) && --left == 0) {
                ::kill(child, SIGKILL);
                while (::waitpid(-1, &status, __WALL) > 0) {
                }
                return 0;
            }
        } else if (signal != SIGTRAP && !(signal == SIGSTOP && started.insert(thread).second)) {
            pass = signal;  // the program's own
        }
        ::ptrace(PTRACE_SYSCALL, thread, nullptr, pass);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const long call = argc > 2 ? std::strtol(argv[1], nullptr, 10) : 0;
    if (call < 1) {
        std::fprintf(stderr, "kill_at: give a number of at least 1, and a program\n");
        return 2;
    }
    const pid_t child = ::fork();
    if (child == 0) {
        if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
        std::raise(SIGSTOP);
        ::execv(argv[2], argv + 2);
        ::_exit(127);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 77;
    const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        return 77;
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    return trace(child, call);
}
