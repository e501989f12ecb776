#include "cli/chat/line_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "cli/colour.h"
#include "cli/terminal.h"
#include "core/error.h"

namespace mr::cli {
namespace {

[[noreturn]] void throw_too_long(const char* what) {
    throw Error::input({.file = "standard input",
                        .problem = fmt::format("{} is longer than {} MiB", what, kMostMessageMiB),
                        .remedy = "end every message with a newline"});
}

constexpr std::string_view kQuotes = "\"\"\"";

// Where a text between triple quotes begins: in a message or in a command's words; npos: nowhere.
std::size_t quotes_of(std::string_view text) {
    if (text.starts_with(kQuotes)) return 0;
    if (!text.starts_with('/') || text.starts_with("//")) return std::string_view::npos;
    const std::size_t word = text.find_first_of(" \t\n");
    const std::size_t at = text.find_first_not_of(" \t", word);
    const bool there = word != std::string_view::npos && at != std::string_view::npos;
    return there && text.substr(at).starts_with(kQuotes) ? at : std::string_view::npos;
}

// The backslash at the end of a line that goes on. LaTeX ends lines with two.
bool goes_on(std::string_view text) {
    const std::size_t last = text.find_last_not_of('\\');
    const std::size_t count = text.size() - (last == std::string_view::npos ? 0 : last + 1);
    return count % 2 == 1;
}

// Without the quotes, and the newlines beside them.
std::string unquoted(std::string_view text, std::size_t at) {
    std::string_view inside = text.substr(at + kQuotes.size());
    if (inside.ends_with(kQuotes)) inside.remove_suffix(kQuotes.size());
    if (inside.starts_with('\n')) inside.remove_prefix(1);
    if (inside.ends_with('\n')) inside.remove_suffix(1);
    return std::string(text.substr(0, at)).append(inside);
}

// Whether quotes at the beginning of a line may be those of a pasted text, which open nothing.
bool pastes_quotes(std::string_view pasted) {
    if (pasted.starts_with(kQuotes)) return true;
    return pasted.find('\n') != std::string_view::npos &&
           quotes_of(pasted) != std::string_view::npos;
}

// How a text is entered that would mean something else as it is.
std::string in_quotes(std::string_view text) { return fmt::format("{0}\n{1}\n{0}", kQuotes, text); }

// Not a stream: a read interrupted by Ctrl-C must return.
class PlainLines final : public LineReader {
  public:
    Outcome next(InputLine& line, bool more) override {
        if (stdin_is_terminal()) {
            out(painted(STDOUT_FILENO, Look::prompt, more ? kMorePrompt : kChatPrompt));
        }
        for (;;) {
            const std::size_t newline = buffer_.find('\n', searched_);
            searched_ = buffer_.size();
            if (std::min(newline, buffer_.size()) > kMostMessageMiB << 20) throw_too_long("a line");
            if (newline != std::string::npos || (ended_ && !buffer_.empty())) {
                line.text = buffer_.substr(0, newline);
                buffer_.erase(0, newline == std::string::npos ? newline : newline + 1);
                searched_ = 0;
                if (line.text.ends_with('\r')) line.text.pop_back();
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

std::unique_ptr<LineReader> make_line_reader(Completer completer) {
    if (stdin_is_terminal() && ::isatty(STDOUT_FILENO) == 1) {
        if (auto edited = make_edited_line_reader(std::move(completer))) return edited;
    }
    return std::make_unique<PlainLines>();
}

LineReader::Outcome next_message(LineReader& reader, Message& to) {
    std::string text;
    std::size_t quotes = std::string::npos;
    for (bool more = false;; more = true) {
        InputLine line;
        const LineReader::Outcome outcome = reader.next(line, more);
        if (outcome == LineReader::Outcome::interrupted) {
            to = {more ? text + "\n" + line.text : line.text, false};
            return outcome;
        }
        if (outcome == LineReader::Outcome::end) {
            if (!more) return outcome;
            break;
        }
        const auto pasted = [&](auto&& what) { return std::ranges::any_of(line.pasted, what); };
        const auto ends_quoted = [](std::string_view one) { return one.ends_with(kQuotes); };
        if (more) text += '\n';
        text += line.text;
        if (text.size() > kMostMessageMiB << 20) throw_too_long("a message");
        if (!more && !pasted(pastes_quotes)) quotes = quotes_of(text);
        if (quotes != std::string::npos) {
            const bool closed = text.size() >= quotes + 2 * kQuotes.size() && ends_quoted(text);
            if (closed && !pasted(ends_quoted)) break;
        } else if (goes_on(text) && !pasted(goes_on)) {
            text.pop_back();
        } else {
            break;
        }
    }
    const bool literal = quotes == std::string::npos;
    // Recalled from the history, it must be the same message again.
    const bool ambiguous = literal && (quotes_of(text) != std::string::npos || goes_on(text));
    reader.remember(ambiguous ? in_quotes(text) : text);
    if (literal) {
        to.one_line = text.find('\n') == std::string::npos;
        to.text = std::move(text);
    } else {
        to = {unquoted(text, quotes), quotes > 0};
    }
    return LineReader::Outcome::line;
}

}  // namespace mr::cli
