// Line editing with libedit. Without libedit there is no such reader.
#include "cli/chat/line_reader.h"

#ifdef MR_LIBEDIT

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <string>

#include "cli/chat/history_file.h"
#include "cli/terminal.h"

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

// State shared with read_character().
struct LineState {
    termios raw{};        // libedit's terminal mode at the start of the line
    std::string cut_off;  // typed so far when a signal came
};

LineState* state_of(EditLine* editor) {
    LineState* state = nullptr;
    return ::el_get(editor, EL_CLIENTDATA, &state) == 0 ? state : nullptr;
}

// After Ctrl-Z the shell resets the terminal to line mode without libedit's knowledge.
void stay_raw(EditLine* editor) {
    const LineState* const state = state_of(editor);
    termios now{};
    if (!state || ::tcgetattr(STDIN_FILENO, &now) != 0) return;
    if ((now.c_lflag & ICANON) == 0) return;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &state->raw);
    ::el_set(editor, EL_REFRESH);
}

// The next character: 1, 0 at the end, -1 after a signal. Waits in short turns, since a signal may
// come just before a read.
int read_character(EditLine* editor, wchar_t* to) {
    std::mbstate_t state{};
    for (;;) {
        if (InterruptGuard::pending()) {
            const LineInfo* const typed = ::el_line(editor);
            if (LineState* const line = state_of(editor)) {
                line->cut_off.assign(typed->buffer, typed->lastchar);
            }
            return -1;
        }
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (::poll(&input, 1, 100) <= 0) {
            stay_raw(editor);
            continue;
        }
        char byte = 0;
        const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
        if (count == 0) return 0;
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return -1;
        const std::size_t used = std::mbrtowc(to, &byte, 1, &state);
        if (used == static_cast<std::size_t>(-2)) continue;  // the character needs more bytes
        if (used == static_cast<std::size_t>(-1)) {          // not UTF-8: skipped
            state = {};
            continue;
        }
        return 1;
    }
}

char* prompt(EditLine*) {
    static std::string text = kChatPrompt;
    return text.data();
}

class EditedLines final : public LineReader {
  public:
    explicit EditedLines(EditLine* editor) : editor_(editor), history_(::history_init()) {
        HistEvent event{};
        ::history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
        ::history(history_, &event, H_SETUNIQUE, 1);
        shorten_history(path_);
        for (const std::string& line : read_history(path_)) {
            ::history(history_, &event, H_ENTER, line.c_str());
        }
        ::el_set(editor_, EL_PROMPT, prompt);
        ::el_set(editor_, EL_EDITOR, "emacs");
        ::el_set(editor_, EL_HIST, ::history, history_);
        ::el_set(editor_, EL_GETCFN, read_character);
        ::el_set(editor_, EL_CLIENTDATA, &state_);
        ::el_source(editor_, nullptr);  // the user's ~/.editrc
    }
    ~EditedLines() override {
        ::el_end(editor_);
        ::history_end(history_);
    }
    EditedLines(const EditedLines&) = delete;
    EditedLines& operator=(const EditedLines&) = delete;

    Outcome next(std::string& line) override {
        int count = 0;
        ::el_resize(editor_);
        // Before the prompt is shown, so that the terminal does not interpret keys typed after it.
        ::el_set(editor_, EL_PREP_TERM, 1);
        ::tcgetattr(STDIN_FILENO, &state_.raw);
        state_.cut_off.clear();
        // The terminal is restored before the program ends, however often Ctrl-C is pressed.
        InterruptGuard::set_patient(true);
        const char* const text = ::el_gets(editor_, &count);
        InterruptGuard::set_patient(false);
        if (InterruptGuard::pending()) {
            line = state_.cut_off;
            return Outcome::interrupted;
        }
        if (!text || count <= 0) return Outcome::end;
        line.assign(text, static_cast<std::size_t>(count));
        while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
        if (!line.empty() && line != last_) {
            HistEvent event{};
            ::history(history_, &event, H_ENTER, line.c_str());
            add_to_history(path_, line);
            last_ = line;
        }
        return Outcome::line;
    }

  private:
    EditLine* editor_;
    History* history_;
    const std::string path_ = history_path();
    std::string last_;
    LineState state_;
};

}  // namespace

std::unique_ptr<LineReader> make_edited_line_reader() {
    if (!use_utf8()) return nullptr;
    EditLine* const editor = ::el_init("millrace", stdin, stdout, stderr);
    return editor ? std::make_unique<EditedLines>(editor) : nullptr;
}

}  // namespace mr::cli

#else

namespace mr::cli {

std::unique_ptr<LineReader> make_edited_line_reader() { return nullptr; }

}  // namespace mr::cli

#endif
