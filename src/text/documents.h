// Documents in a text, for packing and for evaluating.
#pragma once

#include <cstddef>
#include <string_view>

namespace mr::text {

// Between the documents of a text where nothing else is said, and a token of many vocabularies.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// The documents of a text, one after another: the parts between separators, without leading blanks
// and without one line end behind them (\n, \r\n, or the \r that a separator of \n leaves); empty
// ones are dropped. Without a separator the whole text is one document, unchanged.
class Documents {
  public:
    Documents(std::string_view text, std::string_view separator)
        : rest_(text), separator_(separator) {}
    // False if there are no more.
    bool next(std::string_view& document);
    // Bytes not read yet.
    std::size_t left() const { return rest_.size(); }

  private:
    std::string_view rest_, separator_;
};

// Without the byte order mark that some editors put before UTF-8.
std::string_view without_mark(std::string_view text);

}  // namespace mr::text
