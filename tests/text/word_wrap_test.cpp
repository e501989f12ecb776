// Rows on a small terminal, whose contents are compared with rows broken in another way.
#include "text/word_wrap.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "text/columns.h"

namespace mr::text::word_wrap_test {
namespace {

// What a terminal shows. After a full row the cursor stays on the last column until the next
// character comes, and moving it forgets that.
class Rows {
  public:
    explicit Rows(std::size_t columns) : columns_(columns) {}

    void feed(std::string_view bytes) {
        for (std::size_t i = 0; i < bytes.size();) {
            if (bytes[i] == '\x1b') {
                i = obey(bytes, i);
                continue;
            }
            const std::size_t size = utf8_at(bytes, i).size;
            put(bytes.substr(i, size));
            i += size;
        }
    }
    std::vector<std::string> rows() const {
        std::vector<std::string> out;
        for (const std::vector<std::string>& row : cells_) {
            std::string text;
            for (const std::string& cell : row) text += cell;
            while (text.ends_with(' ')) text.pop_back();
            out.push_back(text);
        }
        return out;
    }

  private:
    std::size_t obey(std::string_view bytes, std::size_t at) {
        std::size_t end = at + 2;
        std::size_t number = 0;
        for (; bytes[end] >= '0' && bytes[end] <= '9'; ++end) {
            number = number * 10 + static_cast<std::size_t>(bytes[end] - '0');
        }
        if (bytes[end] == 'C') {
            column_ = std::min(column_ + number, columns_ - 1);
        } else {
            EXPECT_EQ(bytes.substr(at, 3), "\x1b[K");
            cells_.back().resize(std::min(column_, cells_.back().size()));
        }
        full_ = false;
        return end + 1;
    }
    void put(std::string_view character) {
        if (character == "\n") {
            cells_.emplace_back();
            column_ = 0;
            full_ = false;
        } else if (character == "\r") {
            column_ = 0;
            full_ = false;
        } else if (const std::size_t width = columns_of(character); width == 0) {
            if (!cells_.back().empty()) cells_.back()[last_] += character;
        } else {
            if (full_ || column_ + width > columns_) put("\n");
            std::vector<std::string>& row = cells_.back();
            row.resize(std::max(row.size(), column_ + width), " ");
            row[column_] = character;
            if (width == 2) row[column_ + 1] = "";
            last_ = column_;
            full_ = column_ + width == columns_;
            column_ = std::min(column_ + width, columns_ - 1);
        }
    }

    std::size_t columns_, column_ = 0, last_ = 0;
    bool full_ = false;
    std::vector<std::vector<std::string>> cells_{{}};
};

// The rows when the text comes in pieces of `piece` characters.
std::vector<std::string> shown(std::string_view text, std::size_t columns, std::size_t piece = 1) {
    WordWrap wrap(columns);
    Rows rows(columns);
    for (std::size_t i = 0; i < text.size();) {
        std::size_t size = 0;
        for (std::size_t n = 0; n < piece && i + size < text.size(); ++n) {
            size += utf8_at(text, i + size).size;
        }
        rows.feed(wrap.push(text.substr(i, size)));
        i += size;
    }
    return rows.rows();
}

using Lines = std::vector<std::string>;

TEST(WordWrap, BreaksBetweenWords) {
    EXPECT_EQ(shown("Once upon a time", 10), (Lines{"Once upon", "a time"}));
    EXPECT_EQ(shown("Once upon a time", 16), (Lines{"Once upon a time"}));
    EXPECT_EQ(shown("Once upon a time", 15), (Lines{"Once upon a", "time"}));
    EXPECT_EQ(shown("Once upon a time", 4), (Lines{"Once", "upon", "a", "time"}));
    EXPECT_EQ(shown("", 4), (Lines{""}));
}

// Neither an empty row nor a space at the beginning of one.
TEST(WordWrap, AFullRowIsARow) {
    EXPECT_EQ(shown("abcd efgh", 4), (Lines{"abcd", "efgh"}));
    EXPECT_EQ(shown("abcd\nefgh", 4), (Lines{"abcd", "efgh"}));
    EXPECT_EQ(shown("abcd \nefgh", 4), (Lines{"abcd", "efgh"}));
    EXPECT_EQ(shown("abcd   efgh", 4), (Lines{"abcd", "efgh"}));
    EXPECT_EQ(shown("ab cd\n\n  ef", 4), (Lines{"ab", "cd", "", "  ef"}));
}

TEST(WordWrap, ALongWordIsLeftToTheTerminal) {
    EXPECT_EQ(shown("a https://example.org", 8), (Lines{"a", "https://", "example.", "org"}));
    EXPECT_EQ(shown("abcdefgh ij", 4), (Lines{"abcd", "efgh", "ij"}));
    WordWrap wrap(4);
    EXPECT_EQ(wrap.push("abcdefgh"), "abcdefgh") << "one word for whoever copies it";
}

TEST(WordWrap, WideCharactersTakeTwoColumns) {
    EXPECT_EQ(shown("中文字符", 4), (Lines{"中文", "字符"}));
    EXPECT_EQ(shown("中文字符", 5), (Lines{"中文", "字符"}));  // half of one does not fit
    EXPECT_EQ(shown("a 中文字", 5), (Lines{"a 中", "文字"}));  // between any two
    EXPECT_EQ(shown("中abc文", 6), (Lines{"中abc", "文"}));
    EXPECT_EQ(shown("中abcde", 6), (Lines{"中", "abcde"}));
    EXPECT_EQ(shown("x 😀😀", 4), (Lines{"x 😀", "😀"}));
}

TEST(WordWrap, PunctuationKeepsToItsSide) {
    EXPECT_EQ(shown("中文。字", 4), (Lines{"中", "文。", "字"}));
    EXPECT_EQ(shown("中「文字」", 4), (Lines{"中", "「文", "字」"}));
    EXPECT_EQ(shown("中（文）字", 6), (Lines{"中", "（文）", "字"}));
}

TEST(WordWrap, MarksTakeNone) {
    EXPECT_EQ(shown("e\u0301e\u0301 e\u0301e\u0301", 2),
              (Lines{"e\u0301e\u0301", "e\u0301e\u0301"}));
    EXPECT_EQ(shown("ab cde\u0301", 5), (Lines{"ab", "cde\u0301"}));
    EXPECT_EQ(shown("か\u3099か\u3099", 2), (Lines{"か\u3099", "か\u3099"}));
    // A joined emoji is never broken; its parts count, as many terminals draw them.
    EXPECT_EQ(shown("a 👩\u200d👧 b", 5), (Lines{"a", "👩\u200d👧", "b"}));
    EXPECT_EQ(shown("a 👩\u200d👧 b", 6), (Lines{"a 👩\u200d👧", "b"}));
}

TEST(WordWrap, TabsAndControls) {
    EXPECT_EQ(shown("a\tb", 20), (Lines{"a       b"}));
    EXPECT_EQ(shown("abcdef\tb", 7), (Lines{"abcdef", "b"}));
    EXPECT_EQ(shown("a\r\nb\x1b[2J", 20), (Lines{"a", "b\\x1b[2J"}));
    WordWrap wrap(80);
    EXPECT_EQ(wrap.push("\x1b]0;title\x07").find('\x1b'), std::string::npos);
}

TEST(WordWrap, WithoutAWidthNothingIsBroken) {
    WordWrap wrap(0);
    const std::string text = "Once upon a time 中文 there lived a mouse ";
    EXPECT_EQ(wrap.push(text), text);
}

TEST(WordWrap, AnotherWidth) {
    WordWrap wrap(20);
    Rows rows(10);
    EXPECT_EQ(wrap.push("Once upon a ti"), "Once upon a ti");
    wrap.set_columns(10);  // the terminal shows "Once upon " and "a ti"
    rows.feed("a ti");
    rows.feed(wrap.push("me there was"));
    EXPECT_EQ(rows.rows(), (Lines{"a time", "there was"}));
}

// Words broken greedily, one at a time.
Lines greedy_rows(const std::vector<std::string>& words, std::size_t columns) {
    Lines rows{""};
    for (const std::string& word : words) {
        const std::size_t used = columns_of(rows.back());
        if (rows.back().empty()) {
            rows.back() = word;
        } else if (used + 1 + columns_of(word) <= columns) {
            rows.back() += " " + word;
        } else {
            rows.push_back(word);
        }
    }
    return rows;
}

TEST(WordWrap, AsWordsBrokenOneAtATime) {
    std::mt19937 random(5);
    const std::vector<std::string> letters{"a", "e\u0301", "\u0416", "z\u0323\u0301", "\u03a9"};
    for (int trial = 0; trial < 2000; ++trial) {
        const std::size_t columns = 8 + random() % 12;
        std::vector<std::string> words;
        std::string text;
        for (std::size_t n = 1 + random() % 12; n > 0; --n) {
            std::string word;
            for (std::size_t length = 1 + random() % 8; length > 0; --length) {
                word += letters[random() % letters.size()];
            }
            text += (words.empty() ? "" : " ") + word;
            words.push_back(std::move(word));
        }
        ASSERT_EQ(shown(text, columns, 1 + random() % 5), greedy_rows(words, columns)) << text;
    }
}

}  // namespace
}  // namespace mr::text::word_wrap_test
