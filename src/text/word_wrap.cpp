#include "text/word_wrap.h"

#include <algorithm>

#include "core/printable.h"
#include "core/utf8.h"
#include "text/columns.h"

namespace mr::text {
namespace {

// No row begins with these; they close what is before them, or belong to it.
constexpr std::u32string_view kClosing =
    U"\u3001\u3002\u3005\u3009\u300b\u300d\u300f\u3011\u3015\u3017\u3019\u301b\u301e\u301f\u3041"
    U"\u3043\u3045\u3047\u3049\u3063\u3083\u3085\u3087\u308e\u30a1\u30a3\u30a5\u30a7\u30a9\u30c3"
    U"\u30e3\u30e5\u30e7\u30ee\u30fb\u30fc\uff01\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff3d\uff5d";
// No row ends with these.
constexpr std::u32string_view kOpening =
    U"\u3008\u300a\u300c\u300e\u3010\u3014\u3016\u3018\u301a\u301d\uff08\uff3b\uff5b";
constexpr char32_t kJoiner = 0x200d;  // of emoji

bool contains(std::u32string_view set, char32_t code) {
    return set.find(code) != std::u32string_view::npos;
}

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

}  // namespace

void WordWrap::set_columns(std::size_t columns) {
    if (columns == columns_) return;
    // Terminals break their rows anew: where the word began is no longer known.
    if (columns > 0 && column_ > columns) column_ %= columns;
    columns_ = columns;
    word_.clear();
    word_column_ = 0;
}

void WordWrap::end_word() {
    in_word_ = wide_ = attached_ = false;
    word_.clear();
}

void WordWrap::put_space(std::string& out) {
    end_word();
    if (columns_ > 0 && column_ >= columns_) return;  // the row ends here anyway
    out += ' ';
    ++column_;
}

void WordWrap::put(std::string_view character, std::size_t width, std::string& out) {
    if (!in_word_) {
        word_.clear();
        word_column_ = column_;
        in_word_ = true;
    }
    if (columns_ > 0 && column_ + width > columns_) {
        if (word_.empty() && word_column_ > 0 && word_column_ == column_) {  // its first character
            out += '\n';
            column_ = word_column_ = 0;
        } else if (!word_.empty()) {
            // Moved by columns from the border: after a full row terminals differ in where they
            // think that the cursor is.
            out += "\r\x1b[" + std::to_string(word_column_) + "C\x1b[K\n" + word_;
            column_ = columns_of(word_);
            word_column_ = 0;
            word_.clear();
        }
        if (column_ + width > columns_) column_ = 0;  // the terminal begins a row by itself
    }
    out += character;
    column_ += width;
    if (word_column_ > 0) word_ += character;
}

std::string WordWrap::push(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const Utf8Char c = utf8_at(text, i);
        const std::string_view character = text.substr(i, c.size);
        i += c.size;
        if (character == "\n") {
            end_word();
            column_ = 0;
            out += '\n';
        } else if (character == "\r") {
            continue;
        } else if (character == "\t") {
            std::size_t spaces = 8 - column_ % 8;
            if (columns_ > 0) spaces = std::min(spaces, columns_ - std::min(column_, columns_));
            for (; spaces > 0; --spaces) put_space(out);
        } else if (character == " ") {
            put_space(out);
        } else if (!c.valid || is_control(c.code)) {
            const std::string spelled = printable(character);
            for (const char one : spelled) put({&one, 1}, 1, out);
        } else if (const std::size_t width = columns_of(character); width == 0) {
            out += character;  // a mark on the last character
            if (!word_.empty()) word_ += character;
            attached_ |= c.code == kJoiner;
        } else {
            const bool wide = width > 1;
            if ((wide || wide_) && !attached_ && !contains(kClosing, c.code)) end_word();
            put(character, width, out);
            wide_ = wide;
            attached_ = contains(kOpening, c.code);
        }
    }
    return out;
}

}  // namespace mr::text
