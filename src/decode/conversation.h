// A conversation: a history of messages in the model's own chat format, continued turn by turn.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "decode/session.h"
#include "model/engine.h"
#include "text/chat.h"

namespace mr::decode {

// Whether the conversation can go on after such an error. A failed device answers no more.
inline bool may_go_on(ErrorKind kind) { return kind != ErrorKind::device; }

class Conversation {
  public:
    // The format is recognised from the model. Throws Error (input) where it has no tokenizer.
    Conversation(model::Engine& engine, std::string system);

    // One turn. The answer, also one that was ended early, becomes part of the history; one that
    // was cancelled before its first token leaves the history as it was. Where
    // the history outgrows the context, its oldest turns are forgotten; forgotten() counts them.
    // Throws Error (input) where the message alone does not fit.
    Generated answer(const std::string& message, GenerateOptions options,
                     const Session::OnText& on_text = {});
    void clear();

    text::ChatFormat format() const { return format_; }
    const std::vector<text::ChatMessage>& messages() const { return messages_; }
    int forgotten() const { return forgotten_; }

  private:
    std::vector<std::int32_t> encode() const;
    void forget_oldest();

    model::Engine& engine_;
    Session session_;
    text::ChatFormat format_;
    std::vector<text::ChatMessage> messages_;  // the system message first, where there is one
    std::size_t kept_ = 0;                     // messages that are never forgotten
    int forgotten_ = 0;
};

}  // namespace mr::decode
