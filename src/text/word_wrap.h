// Breaks a text between words, for a terminal, while it streams.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mr::text {

// Words are shown as they come, so that one which turns out not to fit is taken back and begins the
// next row. CJK characters are words of their own, except that closing punctuation begins no row
// and opening punctuation ends none. Words longer than a row are left to the terminal, which then
// knows that they are one. Controls are spelled out (core/printable.h): a text must not steer the
// terminal.
class WordWrap {
  public:
    // `columns`: of a row; 0: nothing is broken. The text begins at the left border.
    explicit WordWrap(std::size_t columns) : columns_(columns) {}

    // What to write for the next part of the text, which has whole UTF-8 characters.
    std::string push(std::string_view text);
    // The terminal has another width from now on.
    void set_columns(std::size_t columns);

  private:
    void put(std::string_view character, std::size_t width, std::string& out);
    void put_space(std::string& out);
    void end_word();

    std::size_t columns_;
    std::size_t column_ = 0;       // of the next character; columns_ after a full row
    bool in_word_ = false;         // the last character belongs to a word
    std::size_t word_column_ = 0;  // where that began
    std::string word_;             // what it is so far, where it can still be taken back
    bool wide_ = false;            // the last character takes two columns
    bool attached_ = false;        // the next character belongs to the last one
};

}  // namespace mr::text
