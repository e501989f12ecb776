#include "cli/chat/line_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "cli/terminal.h"
#include "core/error.h"

namespace mr::cli {
namespace {

// Far more than a context holds.
constexpr std::size_t kMostLineMiB = 16;

// Not a stream: a read interrupted by Ctrl-C must return.
class PlainLines final : public LineReader {
  public:
    Outcome next(std::string& line) override {
        if (stdin_is_terminal()) out(kChatPrompt);
        for (;;) {
            const std::size_t newline = buffer_.find('\n', searched_);
            searched_ = buffer_.size();
            if (std::min(newline, buffer_.size()) > kMostLineMiB << 20) {
                throw Error::input(
                    {.file = "standard input",
                     .problem = fmt::format("a line is longer than {} MiB", kMostLineMiB),
                     .remedy = "end every message with a newline"});
            }
            if (newline != std::string::npos || (ended_ && !buffer_.empty())) {
                line = buffer_.substr(0, newline);
                buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
                searched_ = 0;
                if (line.ends_with('\r')) line.pop_back();
                return Outcome::line;
            }
            if (ended_) return Outcome::end;
            if (InterruptGuard::pending()) return Outcome::interrupted;
            // A signal between the check and a read would only be seen with the next line, so wait
            // in short turns.
            pollfd input{STDIN_FILENO, POLLIN, 0};
            if (::poll(&input, 1, 100) <= 0) continue;
            char bytes[1 << 16];
            const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
            if (count > 0) {
                buffer_.append(bytes, static_cast<std::size_t>(count));
            } else if (count == 0 || errno != EINTR) {
                ended_ = true;
            }
        }
    }

  private:
    std::string buffer_;
    std::size_t searched_ = 0;  // bytes at the beginning without a newline
    bool ended_ = false;
};

}  // namespace

std::unique_ptr<LineReader> make_line_reader() {
    if (stdin_is_terminal() && ::isatty(STDOUT_FILENO) == 1) {
        if (std::unique_ptr<LineReader> edited = make_edited_line_reader()) return edited;
    }
    return std::make_unique<PlainLines>();
}

}  // namespace mr::cli
