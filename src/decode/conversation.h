// A conversation: a history of messages in the model's own format, continued turn by turn.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "decode/chat_thread.h"
#include "decode/live_sequence.h"
#include "decode/session.h"
#include "model/engine.h"
#include "text/chat_writer.h"

namespace mr::decode {

// Whether the conversation can go on after such an error. A failed device answers no more.
inline bool may_go_on(ErrorKind kind) { return kind != ErrorKind::device; }

class Conversation {
  public:
    // Written as the model's own template says, or as `chat` does. Throws Error (input) where the
    // model has no tokenizer, and what ChatWriter throws. `stream`, for which the engine was made:
    // the conversation is one sequence that goes on from turn to turn. Only what is new is fed, and
    // no turn is ever forgotten; the first words leave the window instead.
    Conversation(model::Engine& engine, std::string system, text::ChatOptions chat = {},
                 const model::Stream& stream = {});

    // One turn. The answer, also one that was ended early, becomes part of the history; one that
    // was cancelled before its first token leaves the history as it was. Where
    // the history outgrows the context, its oldest turns are forgotten; forgotten() counts them.
    // Throws Error (input) where the message alone does not fit.
    Generated answer(const std::string& message, GenerateOptions options,
                     const Session::OnText& on_text = {});
    void clear();
    // Both throw Error (input) where the template refuses what they give, and leave all as it was.
    // The system prompt from the next answer on; empty: none.
    void set_system(std::string words);
    // Goes on from these messages: a system message or none, then whole turns.
    void restore(std::vector<text::ChatMessage> messages);

    const text::ChatWriter& writer() const { return writer_; }
    const std::vector<text::ChatMessage>& messages() const { return messages_; }
    int forgotten() const { return forgotten_; }
    // Of a conversation that streams: the tokens that the last answer did not see any more, and
    // whether it was the first of the conversation to miss some.
    std::int64_t evicted() const { return evicted_; }
    bool first_left() const { return first_left_; }
    // The questions of the turns that the last answer() forgot, oldest first.
    const std::vector<std::string>& dropped() const { return dropped_; }

  private:
    std::vector<std::int32_t> encode() const;
    Generated generate(const GenerateOptions& options, const Session::OnText& on_text);
    Generated generate_live(const GenerateOptions& options, const Session::OnText& on_text);
    void forget_oldest();
    void take(std::vector<text::ChatMessage> messages);

    model::Engine& engine_;
    Session session_;
    text::ChatWriter writer_;
    std::vector<text::ChatMessage> messages_;  // the system message first, where there is one
    std::size_t kept_ = 0;                     // messages that are never forgotten
    int forgotten_ = 0;
    std::vector<std::string> dropped_;
    // Where it streams.
    std::optional<LiveSequence> live_;
    ChatThread thread_;
    std::int64_t evicted_ = 0;
    bool first_left_ = false;
};

}  // namespace mr::decode
