// Turns tokens into text: whole UTF-8 characters only, and nothing that may still turn out to be
// the beginning of a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::decode {

class TextStream {
  public:
    struct Shown {
        bool stop = false;     // the stop string is a part of the text
        bool special = false;  // and so are special tokens
    };
    // `at_start`: the text begins here rather than after a prompt. The tokenizer must outlive the
    // object.
    TextStream(const text::Tokenizer& tokenizer, std::vector<std::string> stops, bool at_start,
               Shown shown = {false, false});

    // Takes the next token and returns the text that can be shown now. If a stop string is
    // complete, returns the text before it (or up to its end), and nothing after that. `heed`:
    // false for a token with which no stop string may end, whatever follows it.
    std::string push(std::int32_t token, bool heed = true);
    // The text is over: returns what was held back.
    std::string finish();
    bool stopped() const { return stopped_; }
    const std::string& stopped_by() const { return stopped_by_; }

  private:
    std::string filter(std::string_view text, bool heed);

    text::StreamDecoder decoder_;
    std::vector<std::string> stops_;
    const bool shows_stop_;
    bool heeded_ = true;  // of the last token
    std::string held_;
    bool stopped_ = false;
    std::string stopped_by_;
};

}  // namespace mr::decode
