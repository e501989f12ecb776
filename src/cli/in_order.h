// Texts that are made together, and printed one after the other.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "text/documents.h"

namespace mr::cli {

// Prints texts in order: the first unfinished one streams, later ones wait.
class InOrder {
  public:
    using Write = std::function<void(std::string_view)>;
    InOrder(std::string prompt, bool separate, Write write)
        : write_(std::move(write)), prompt_(std::move(prompt)), separate_(separate) {}

    // Prints the prompt of the text that streams, if it is not printed yet.
    void begin() {
        if (!begun_) write_(prompt_);
        begun_ = true;
    }
    void push(int text, std::string_view piece) {
        if (text != current_) {
            if (current_ >= 0) held_[text] += piece;
            return;
        }
        if (piece.empty()) return;
        begin();
        write_(piece);
    }
    // `whole`: not cut off. A text that was cut off must not be taken for a whole one.
    void end(bool whole) {
        if (whole && !prompt_.empty()) begin();  // an empty text, too, follows its prompt
        if (begun_) write_("\n");
        if (separate_ && whole) write_(fmt::format("{}\n", text::kEndOfText));
        begun_ = false;
        current_ = whole ? current_ + 1 : -1;  // after a text that was cut off, nothing is shown
        if (const auto next = held_.extract(current_)) push(current_, next.mapped());
    }

  private:
    Write write_;
    std::map<int, std::string> held_;  // output of texts after the current one
    std::string prompt_;
    bool separate_, begun_ = false;
    int current_ = 0;
};

}  // namespace mr::cli
