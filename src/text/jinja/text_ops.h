// Python's string operations on marked texts. A character of a result counts as user text if any
// character it comes from does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/jinja/budget.h"
#include "text/jinja/marked_text.h"

namespace mr::text::jinja {

// Python indexes characters; texts here are indexed by bytes.
class CharIndex {
  public:
    CharIndex(Budget& budget, const MarkedText& text);
    std::size_t count() const { return ascii_ ? size_ : starts_.size() - 1; }
    // The byte at which character `i` begins; i == count(): the end.
    std::size_t byte(std::size_t i) const { return ascii_ ? i : starts_[i]; }
    // The index of the character that begins at `byte`.
    std::size_t character(std::size_t byte) const;

  private:
    bool ascii_;
    std::size_t size_;
    std::vector<std::size_t> starts_;
};

std::size_t char_count(Budget& budget, const MarkedText& text);
bool is_space(char32_t code);  // like str.isspace()

// `text` without leading and trailing characters of `chars` (null: white space).
MarkedText strip(Budget& budget, const MarkedText& text, const MarkedText* chars, bool left,
                 bool right);
// At most `most` splits unless negative; `separator` null: at runs of white space.
std::vector<MarkedText> split(Budget& budget, const MarkedText& text, const MarkedText* separator,
                              std::int64_t most);
std::vector<MarkedText> split_from_right(Budget& budget, const MarkedText& text,
                                         const MarkedText* separator, std::int64_t most);
std::vector<MarkedText> split_lines(Budget& budget, const MarkedText& text, bool keep_ends);
MarkedText replace(Budget& budget, const MarkedText& text, const MarkedText& old,
                   const MarkedText& with, std::int64_t most);
MarkedText join(Budget& budget, const MarkedText& separator, const std::vector<MarkedText>& parts);

// Where a text goes in its field: at its left, at its right, in its middle, or at its right with
// the fill behind its sign.
enum class Align { left, right, middle, behind_sign };
// `text` and as many `fill` as make it `width` characters wide.
MarkedText padded(Budget& budget, const MarkedText& text, std::int64_t width, Align align,
                  const MarkedText& fill);

MarkedText upper(Budget& budget, const MarkedText& text);
MarkedText lower(Budget& budget, const MarkedText& text);
MarkedText capitalize(Budget& budget, const MarkedText& text);
MarkedText title(Budget& budget, const MarkedText& text);  // str.title(): capital after non-letter
// Jinja's title filter: capitals after white space, - ( { [ and <.
MarkedText title_of_words(Budget& budget, const MarkedText& text);
MarkedText reversed(Budget& budget, const MarkedText& text);

}  // namespace mr::text::jinja
