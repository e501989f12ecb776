// Line editing with libedit. Without libedit there is no such reader.
#include "cli/chat/line_reader.h"

#ifdef MR_LIBEDIT

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/chat/history_file.h"
#include "cli/colour.h"
#include "cli/terminal.h"
#include "core/utf8.h"
#include "text/columns.h"

namespace mr::cli {
namespace {

// libedit counts in characters of the locale; texts are UTF-8.
bool use_utf8() {
    for (const char* locale : {"", "C.UTF-8"}) {
        if (std::setlocale(LC_CTYPE, locale) && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0) {
            return true;
        }
    }
    std::setlocale(LC_CTYPE, "C");
    return false;
}

constexpr std::string_view kPasteBegins = "\x1b[?2004h", kPasteEnds = "\x1b[?2004l";
constexpr std::string_view kPasteEnd = "\x1b[201~";  // what the terminal sends after a paste
constexpr char kLiteral = '\1';                      // around codes in the prompt

// State shared with the functions that libedit calls.
struct LineState {
    termios raw{};                    // libedit's terminal mode at the start of the line
    std::string cut_off;              // typed so far when a signal came
    std::string prompt;               // with its codes
    std::size_t indent{};             // the prompt's columns
    winsize size{};                   // of the terminal
    bool pastes = false;              // the terminal marks what is pasted
    std::vector<std::string> pasted;  // into the line
    Completer completer;
};

LineState* state_of(EditLine* editor) {
    LineState* state = nullptr;
    return ::el_get(editor, EL_CLIENTDATA, &state) == 0 ? state : nullptr;
}

// After Ctrl-Z the shell resets the terminal to line mode without libedit's knowledge.
void stay_raw(EditLine* editor, const LineState& state) {
    termios now{};
    if (::tcgetattr(STDIN_FILENO, &now) != 0) return;
    if ((now.c_lflag & ICANON) == 0) return;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &state.raw);
    if (state.pastes) out(kPasteBegins);
    ::el_set(editor, EL_REFRESH);
}

// The rows above the end of a text that follows the prompt. It was drawn in rows of `drawn`
// columns, each ended by a newline (see EditedLines), and the terminal now has `columns`: terminals
// break rows that no longer fit in two or more, and leave the others as they are.
std::size_t rows_above(std::size_t indent, std::string_view text, std::size_t drawn,
                       std::size_t columns) {
    std::size_t rows = 0;
    std::size_t column = 0;      // in the row as it was drawn
    std::size_t room = columns;  // in the row that the terminal has made of it
    std::size_t blanks = 0;      // not drawn at the end of a row
    const auto end_row = [&] {
        ++rows;
        column = blanks = 0;
        room = columns;
    };
    const auto fill = [&](std::size_t width) {
        if (width > room) {
            ++rows;
            room = columns;
        }
        room -= std::min(width, room);
    };
    const auto put = [&](std::size_t width, bool blank) {
        if (column + width > drawn) end_row();
        column += width;
        if (blank) {
            blanks += width;
        } else {
            for (; blanks > 0; --blanks) fill(1);
            fill(width);
        }
        if (column >= drawn) end_row();
    };
    for (std::size_t i = 0; i < indent; ++i) put(1, false);
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t size = utf8_at(text, i).size;
        const std::string_view character = text.substr(i, size);
        i += size;
        if (character == "\n") {
            end_row();
        } else if (character == "\t") {
            for (std::size_t left = 8 - column % 8; left > 0; --left) put(1, true);
        } else {
            put(text::columns_of(character), character == " ");
        }
    }
    for (; blanks > 0; --blanks) fill(1);  // the cursor is behind them
    return rows;
}

std::size_t edit_columns(const LineState& state) {
    return std::max<std::size_t>(state.size.ws_col, 1);
}

std::string_view before_cursor(const LineInfo& typed) {
    return {typed.buffer, static_cast<std::size_t>(typed.cursor - typed.buffer)};
}

// libedit does not know that terminals break rows anew when their width changes: it is told to draw
// the line from its first row. (What has scrolled off the screen stays there.)
void heed_size(EditLine* editor, LineState& state) {
    winsize now{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0 || now.ws_col == 0) return;
    if (now.ws_col == state.size.ws_col && now.ws_row == state.size.ws_row) return;
    const std::size_t drawn = edit_columns(state);
    state.size = now;
    const std::size_t above =
        rows_above(state.indent, before_cursor(*::el_line(editor)), drawn, edit_columns(state));
    ::el_resize(editor);
    // Not from the first column: tmux saves a screen that is cleared from its first place on.
    out((above > 0 ? fmt::format("\x1b[{}A", above) : "") + "\r \x1b[J\r");
    ::el_set(editor, EL_REFRESH);
}

// The next byte: 1, 0 at the end, -1 after a signal. Waits in short turns, since a signal may come
// just before a read.
int read_byte(EditLine* editor, char* to) {
    LineState* const state = state_of(editor);
    for (;;) {
        if (InterruptGuard::pending()) {
            const LineInfo* const typed = ::el_line(editor);
            if (state) state->cut_off.assign(typed->buffer, typed->lastchar);
            return -1;
        }
        if (state) heed_size(editor, *state);
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (::poll(&input, 1, 100) <= 0) {
            if (state) stay_raw(editor, *state);
            continue;
        }
        const ssize_t count = ::read(STDIN_FILENO, to, 1);
        if (count == 0) return 0;
        if (count < 0 && errno == EINTR) continue;
        return count < 0 ? -1 : 1;
    }
}

int read_character(EditLine* editor, wchar_t* to) {
    if (LineState* const line = state_of(editor)) {
        const LineInfoW* const typed = ::el_wline(editor);
        if (typed->lastchar == typed->buffer) line->pasted.clear();
    }
    std::mbstate_t state{};
    for (;;) {
        char byte = 0;
        if (const int got = read_byte(editor, &byte); got != 1) return got;
        const std::size_t used = std::mbrtowc(to, &byte, 1, &state);
        if (used == static_cast<std::size_t>(-2)) continue;  // the character needs more bytes
        if (used == static_cast<std::size_t>(-1)) {          // not UTF-8: skipped
            state = {};
            continue;
        }
        return 1;
    }
}

// A pasted text as it goes into the line: terminals send its newlines as \r, and of controls only
// newlines and tabs stay.
std::string as_typed_text(std::string_view pasted) {
    std::string text;
    for (std::size_t i = 0; i < pasted.size();) {
        const Utf8Char c = utf8_at(pasted, i);
        const std::string_view character = pasted.substr(i, c.size);
        i += c.size;
        if (!c.valid) {
            text += "\ufffd";
        } else if (c.code == '\r') {
            text += '\n';
            if (pasted.substr(i).starts_with('\n')) ++i;
        } else if (c.code == '\n' || c.code == '\t' || (c.code >= 0x20 && c.code != 0x7f)) {
            text += character;
        }
    }
    return text;
}

// Bound to what terminals send before a paste: what follows is a part of the line, newlines too.
unsigned char take_paste(EditLine* editor, int) {
    std::string pasted;
    bool too_long = false;
    while (!pasted.ends_with(kPasteEnd)) {
        char byte = 0;
        if (read_byte(editor, &byte) != 1) return CC_ERROR;
        // A longer one is read to its end, and refused: the terminal rings.
        if (pasted.size() > kMostMessageMiB << 20) {
            too_long = true;
            pasted.erase(0, pasted.size() - kPasteEnd.size());
        }
        pasted += byte;
    }
    if (too_long) return CC_ERROR;
    pasted.resize(pasted.size() - kPasteEnd.size());
    std::string text = as_typed_text(pasted);
    while (text.ends_with('\n')) text.pop_back();  // enter sends it
    if (LineState* const state = state_of(editor)) state->pasted.push_back(text);
    return ::el_insertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// In whole characters.
std::string common_beginning(const std::vector<std::string>& words) {
    const std::string& first = words.front();
    std::size_t end = 0;
    while (end < first.size()) {
        const std::size_t next = end + utf8_at(first, end).size;
        const std::string_view more = std::string_view(first).substr(0, next);
        if (!std::ranges::all_of(words, [&](const auto& word) { return word.starts_with(more); })) {
            break;
        }
        end = next;
    }
    return first.substr(0, end);
}

int count_characters(std::string_view text) {
    int count = 0;
    for (std::size_t i = 0; i < text.size(); ++count) i += utf8_at(text, i).size;
    return count;
}

// Below the line, in as many columns as there is room for; the line is drawn anew after them.
void list_words(EditLine* editor, const LineState& state, const LineInfo& typed,
                const std::vector<std::string>& words) {
    const std::size_t columns = edit_columns(state);
    std::size_t widest = 0;
    for (const std::string& word : words) widest = std::max(widest, text::columns_of(word));
    const std::size_t beside = std::max<std::size_t>((columns - 1) / (widest + 2), 1);
    const std::string_view line(typed.buffer,
                                static_cast<std::size_t>(typed.lastchar - typed.buffer));
    const std::size_t below = rows_above(state.indent, line, columns, columns) -
                              rows_above(state.indent, before_cursor(typed), columns, columns);
    std::string list(below + 1, '\n');
    constexpr std::size_t kMostListed = 100;
    for (std::size_t i = 0; i < std::min(words.size(), kMostListed); ++i) {
        list += words[i];
        const bool last = i + 1 == words.size() || (i + 1) % beside == 0;
        list +=
            last ? std::string("\n") : std::string(widest + 2 - text::columns_of(words[i]), ' ');
    }
    if (words.size() > kMostListed) {
        if (!list.ends_with('\n')) list += '\n';
        list += fmt::format("... and {} more\n", words.size() - kMostListed);
    }
    out("\r" + list);
    ::el_set(editor, EL_REFRESH);
}

// Tab.
unsigned char complete_line(EditLine* editor, int) {
    const LineState* const state = state_of(editor);
    const LineInfo* const typed = ::el_line(editor);
    const std::string before(typed->buffer, typed->cursor);
    if (!state || !state->completer || before.find('\n') != std::string::npos) return CC_ERROR;
    const Completions found = state->completer(before);
    if (found.words.empty()) return CC_ERROR;
    std::string word = common_beginning(found.words);
    const std::string had = before.substr(found.begin);
    const bool alone = found.words.size() == 1;
    if (alone && !word.ends_with('/')) word += ' ';
    if (word.size() <= had.size()) {
        if (alone) return CC_ERROR;
        list_words(editor, *state, *typed, found.words);
        return CC_NORM;
    }
    // In characters of the locale.
    ::el_deletestr(editor, count_characters(had));
    return ::el_insertstr(editor, word.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

char* prompt(EditLine* editor) {
    static std::string none;
    LineState* const state = state_of(editor);
    return state ? state->prompt.data() : none.data();
}

class EditedLines final : public LineReader {
  public:
    EditedLines(EditLine* editor, Completer completer)
        : editor_(editor), history_(::history_init()) {
        state_.completer = std::move(completer);
        HistEvent event{};
        ::history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
        ::history(history_, &event, H_SETUNIQUE, 1);
        shorten_history(path_);
        for (const std::string& line : read_history(path_)) {
            ::history(history_, &event, H_ENTER, line.c_str());
        }
        ::el_set(editor_, EL_CLIENTDATA, &state_);
        ::el_set(editor_, EL_PROMPT_ESC, prompt, kLiteral);
        ::el_set(editor_, EL_EDITOR, "emacs");
        ::el_set(editor_, EL_HIST, ::history, history_);
        ::el_set(editor_, EL_GETCFN, read_character);
        ::el_source(editor_, nullptr);  // the user's ~/.editrc
        // After it: choosing vi's keys there forgets all others.
        ::el_set(editor_, EL_ADDFN, "millrace-paste", "take what is pasted", take_paste);
        ::el_set(editor_, EL_BIND, "\\e[200~", "millrace-paste", nullptr);
        ::el_set(editor_, EL_ADDFN, "millrace-complete", "complete a command", complete_line);
        ::el_set(editor_, EL_BIND, "^I", "millrace-complete", nullptr);
        // Without this, libedit lets the border end a full row. Terminals that become wider join
        // such rows again, or do not; those that a newline ended always stay.
        ::el_set(editor_, EL_SETTC, "am", "no", nullptr);
        int edits = 0;
        state_.pastes =
            ::el_get(editor_, EL_EDITMODE, &edits) == 0 && edits != 0 && obeys_codes(STDOUT_FILENO);
    }
    ~EditedLines() override {
        ::el_end(editor_);  // puts the terminal back
        try {
            if (state_.pastes) out(kPasteEnds);
        } catch (...) {  // it has gone
        }
        ::history_end(history_);
    }
    EditedLines(const EditedLines&) = delete;
    EditedLines& operator=(const EditedLines&) = delete;

    Outcome next(InputLine& line, bool more) override {
        int count = 0;
        const char* const words = more ? kMorePrompt : kChatPrompt;
        const Paint codes = paint(STDOUT_FILENO, Look::prompt);
        state_.indent = text::columns_of(words);
        state_.prompt = words;
        if (!codes.begin.empty()) {  // the blank stays behind the codes, which libedit needs
            state_.prompt.pop_back();
            state_.prompt = fmt::format("\1{}\1{}\1{}\1 ", codes.begin, state_.prompt, codes.end);
        }
        ::el_resize(editor_);
        ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &state_.size);
        // Before the prompt is shown, so that the terminal does not interpret keys typed after it.
        ::el_set(editor_, EL_PREP_TERM, 1);
        ::tcgetattr(STDIN_FILENO, &state_.raw);
        state_.cut_off.clear();
        state_.pasted.clear();
        // The terminal is restored before the program ends, however often Ctrl-C is pressed.
        InterruptGuard::set_patient(true);
        if (state_.pastes) out(kPasteBegins);
        const char* const text = ::el_gets(editor_, &count);
        hold_input();
        InterruptGuard::set_patient(false);
        if (InterruptGuard::pending()) {
            line.text = state_.cut_off;
            return Outcome::interrupted;
        }
        if (!text || count <= 0) return Outcome::end;
        line.text.assign(text, static_cast<std::size_t>(count));
        while (line.text.ends_with('\n') || line.text.ends_with('\r')) line.text.pop_back();
        line.pasted = std::move(state_.pasted);
        return Outcome::line;
    }

    void remember(const std::string& message) override {
        if (message.empty() || message == last_) return;
        HistEvent event{};
        ::history(history_, &event, H_ENTER, message.c_str());
        add_to_history(path_, message);
        last_ = message;
    }

  private:
    // Until the next prompt, what is typed or pasted waits unseen and byte for byte: a line mode
    // would show the codes around a paste within the answer, and cut long lines. Ctrl-C still is a
    // signal.
    void hold_input() const {
        termios now{};
        if (!state_.pastes || ::tcgetattr(STDIN_FILENO, &now) != 0) return;
        now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        ::tcsetattr(STDIN_FILENO, TCSADRAIN, &now);
    }

    EditLine* editor_;
    History* history_;
    const std::string path_ = history_path();
    std::string last_;
    LineState state_;
};

}  // namespace

std::unique_ptr<LineReader> make_edited_line_reader(Completer completer) {
    if (!use_utf8()) return nullptr;
    EditLine* const editor = ::el_init("millrace", stdin, stdout, stderr);
    if (!editor) return nullptr;
    return std::make_unique<EditedLines>(editor, std::move(completer));
}

}  // namespace mr::cli

#else

namespace mr::cli {

std::unique_ptr<LineReader> make_edited_line_reader(Completer) { return nullptr; }

}  // namespace mr::cli

#endif
