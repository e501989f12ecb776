// The ids of a conversation that goes on in one sequence: what was written stays, and of an answer
// the tokens that the model drew, so that the next turn adds to them as long as the template writes
// the same text again.
#pragma once

#include <cstdint>
#include <vector>

#include "text/chat_writer.h"

namespace mr::decode {

class ChatThread {
  public:
    // Both must outlive it.
    ChatThread(const text::ChatWriter& writer, const text::Tokenizer& tokenizer)
        : writer_(writer), tokenizer_(tokenizer) {}

    // The whole conversation as ids. Where `text` begins with what was written before and what the
    // model answered to it, with their ids, and the rest is encoded behind them; where it does not,
    // all of it is encoded anew, or all behind the last token that still says the same.
    std::vector<std::int32_t> encode(const text::ChatText& text) const;
    // `text` was encoded as `ids`, and `answer` was drawn behind them.
    void go_on(text::ChatText text, std::vector<std::int32_t> ids,
               const std::vector<std::int32_t>& answer);

  private:
    bool begins(const text::ChatText& text) const;
    std::size_t end_of_answer(const text::ChatText& text, std::size_t& tokens) const;

    const text::ChatWriter& writer_;
    const text::Tokenizer& tokenizer_;
    text::ChatText text_;            // as it was written last
    std::vector<std::int32_t> ids_;  // of it and of the answer
    std::size_t written_ = 0;        // ids of the text
};

}  // namespace mr::decode
