#include "cli/denoising_view.h"

#include <unistd.h>

#include <algorithm>

#include "cli/terminal.h"
#include "core/utf8.h"
#include "text/columns.h"
#include "text/tokenizer.h"

namespace mr::cli {
namespace {

// Frees two lines below the cursor, and saves its position.
constexpr std::string_view kMakeRoom =
    "\x1b"
    "D\x1b"
    "D\x1b[2A\x1b"
    "7";
// Restores the saved position, and clears everything after it.
constexpr std::string_view kClear =
    "\x1b"
    "8\x1b[J";

std::size_t denoising_width() {
    const std::size_t told = terminal_columns(STDOUT_FILENO);
    return told > 0 ? told : 80;
}

}  // namespace

// Moves the cursor position by one character.
void DenoisingView::advance(std::string_view character, std::size_t width) {
    const char c = character.front();
    if (c == '\n' || c == '\r') {
        column_ = 0;
    } else if (c == '\t') {
        column_ = std::min(column_ / 8 * 8 + 8, width - 1);
    } else if (static_cast<unsigned char>(c) >= ' ' && c != '\x7f') {
        const std::size_t columns = text::columns_of(character);
        // A character that does not fit into the line begins the next one.
        column_ = column_ + columns > width ? columns : column_ + columns;
    }
}

void DenoisingView::write(std::string_view text) {
    const std::size_t width = denoising_width();
    std::string kept(drawn_ ? kClear : "");
    drawn_ = false;
    for (std::size_t i = 0; i < text.size();) {
        const std::string_view character = text.substr(i, utf8_at(text, i).size);
        i += character.size();
        const bool again = ended_ && character == "\n";  // the line was ended already
        ended_ = ended_ && character == "\r";
        if (again) continue;
        advance(character, width);
        kept += character;
    }
    out(kept);
}

void DenoisingView::show(std::span<const std::int32_t> block, std::span<const std::uint8_t> known) {
    const std::size_t width = denoising_width();
    // A wide character that does not fit leaves one column of the first line empty.
    const std::size_t room = 2 * width - 1;
    std::string line;
    std::size_t columns = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
        const std::string piece = known[i] ? one_line(tokenizer_.display(block[i])) : "░";
        const std::size_t wide = text::columns_of(piece);
        if (columns + wide > room) break;
        columns += wide;
        line += known[i] ? piece : "\x1b[2m" + piece + "\x1b[22m";
    }
    std::string begin(drawn_ ? kClear : "");
    if (!drawn_) {
        if (column_ >= width) {
            begin = "\n";
            column_ = 0;
            ended_ = true;
        }
        begin.append(kMakeRoom).append("\x1b[J");
    }
    out(begin + line);
    drawn_ = true;
}

}  // namespace mr::cli
