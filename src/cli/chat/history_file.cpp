#include "cli/chat/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "core/output_file.h"

namespace mr::cli {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = S_IRUSR | S_IWUSR;  // readable only by this user
constexpr std::size_t kMostBytes = std::size_t{4} << 20;

class Fd {
  public:
    explicit Fd(int fd) : fd_(fd) {}
    ~Fd() {
        if (fd_ >= 0) ::close(fd_);
    }
    Fd(const Fd&) = delete;
    Fd& operator=(const Fd&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

// A newline within a message. No message has another: pasted ones become newlines.
constexpr char kNewline = '\r';

std::string as_row(std::string line) {
    std::replace(line.begin(), line.end(), '\n', kNewline);
    return line + "\n";
}

// All lines of the file, or its last ones if it is unexpectedly long.
std::vector<std::string> all_lines(const std::string& path) {
    // A FIFO of that name must not block the program.
    const Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
    const auto size = static_cast<std::size_t>(status.st_size);
    const std::size_t begin = size > kMostBytes ? size - kMostBytes : 0;
    std::string text(size - begin, '\0');
    const ssize_t count = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(begin));
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        std::replace(line.begin(), line.end(), kNewline, '\n');
        if (!line.empty()) lines.push_back(line);
    }
    if (begin > 0 && !lines.empty()) lines.erase(lines.begin());  // it is incomplete
    return lines;
}

}  // namespace

std::string history_path() {
    fs::path folder;
    // The XDG specification says to ignore relative paths.
    if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state == '/') {
        folder = state;
    } else if (const char* home = std::getenv("HOME"); home && *home == '/') {
        folder = fs::path(home) / ".local/state";
    } else {
        return {};
    }
    return (folder / "millrace/chat_history").string();
}

std::vector<std::string> read_history(const std::string& path) {
    std::vector<std::string> lines = all_lines(path);
    if (lines.size() > kHistoryLines) {
        lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kHistoryLines));
    }
    return lines;
}

void add_to_history(const std::string& path, const std::string& line) {
    if (path.empty() || line.empty()) return;
    const fs::path folder = fs::path(path).parent_path();
    std::error_code ignored;
    if (fs::create_directories(folder, ignored)) {
        fs::permissions(folder, fs::perms::owner_all, ignored);
    }
    const Fd file(
        ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, kMode));
    struct stat status {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    const std::string text = as_row(line);
    // One write, so that lines of two programs do not mix. Errors are ignored.
    if (::write(file.get(), text.data(), text.size()) < 0) return;
}

void shorten_history(const std::string& path) {
    const std::vector<std::string> lines = all_lines(path);
    if (lines.size() < 2 * kHistoryLines) return;
    try {
        OutputFile file(path, kMode);
        for (std::size_t i = lines.size() - kHistoryLines; i < lines.size(); ++i) {
            file.write(as_row(lines[i]));
        }
        file.commit();
    } catch (const Error&) {  // it stays long
    }
}

}  // namespace mr::cli
