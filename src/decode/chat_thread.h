// The ids of a conversation in one sequence. Ids of earlier text and the tokens drawn for answers
// are kept, so that the next turn only adds ids as long as the template writes the same text
// again.
#pragma once

#include <cstdint>
#include <vector>

#include "text/chat_writer.h"

namespace mr::decode {

class ChatThread {
  public:
    // `writer` and `tokenizer` must outlive the thread.
    ChatThread(const text::ChatWriter& writer, const text::Tokenizer& tokenizer)
        : writer_(writer), tokenizer_(tokenizer) {}

    // The whole conversation as ids. If `text` begins with the text written before and the model's
    // answer, their ids are kept and only the rest is encoded. If it differs in the answer,
    // encoding starts after the last token that still matches; if it differs earlier, all of it is
    // encoded.
    std::vector<std::int32_t> encode(const text::ChatText& text) const;
    // Records that `text` was encoded as `ids` and that `answer` was drawn after them.
    void go_on(text::ChatText text, std::vector<std::int32_t> ids,
               const std::vector<std::int32_t>& answer);

  private:
    bool begins(const text::ChatText& text) const;
    std::size_t end_of_answer(const text::ChatText& text, std::size_t& tokens) const;

    const text::ChatWriter& writer_;
    const text::Tokenizer& tokenizer_;
    text::ChatText text_;            // the text as last written
    std::vector<std::int32_t> ids_;  // ids of text_ and of the answer
    std::size_t written_ = 0;        // how many of ids_ are the text's
};

}  // namespace mr::decode
