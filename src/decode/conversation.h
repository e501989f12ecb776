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
    // Uses the model's own template, or the one in `chat`. Throws Error (input) where the model has
    // no tokenizer, and what ChatWriter throws. A model that continues texts
    // (ChatWriter::continues_texts()) is given each message as the beginning of a text of its own:
    // the history is that one turn, and a system prompt is an Error (usage). `stream`: the stream
    // for which the engine was made; the conversation is then one sequence that continues from turn
    // to turn. Only new tokens are fed, and no turn is ever dropped; the oldest tokens leave the
    // window instead.
    Conversation(model::Engine& engine, std::string system, text::ChatOptions chat = {},
                 const model::Stream& stream = {});

    // One turn. The answer, also one that was ended early, becomes part of the history; one that
    // was cancelled before its first token leaves the history as it was. Where
    // the history outgrows the context, its oldest turns are forgotten; forgotten() counts them.
    // Throws Error (input) where the message alone does not fit.
    Generated answer(const std::string& message, GenerateOptions options,
                     const Session::OnText& on_text = {});
    // Answers the last question anew. Where the new answer was cancelled before its first token, or
    // fails, the old one stays. Call it only where there is a turn.
    Generated answer_again(GenerateOptions options, const Session::OnText& on_text = {});
    // Takes the last turn back and returns its question; none: there is no turn.
    std::optional<std::string> undo();
    std::size_t turns() const { return (messages_.size() - kept_) / 2; }
    void clear();
    // set_system() and restore() throw Error (input) where the template refuses the messages, and
    // then change nothing. The system prompt from the next answer on; empty: none.
    void set_system(std::string words);
    // Continues from these messages: an optional system message, then whole turns.
    void restore(std::vector<text::ChatMessage> messages);

    const text::ChatWriter& writer() const { return writer_; }
    const std::vector<text::ChatMessage>& messages() const { return messages_; }
    int forgotten() const { return forgotten_; }
    // For a conversation that streams: how many tokens the last answer could no longer see, and
    // whether it was the first answer to miss some.
    std::int64_t evicted() const { return evicted_; }
    bool first_left() const { return first_left_; }
    // The questions of the turns that the last answer() forgot, oldest first.
    const std::vector<std::string>& dropped() const { return dropped_; }

  private:
    void require_talk() const;
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
    // Only for a conversation that streams.
    std::optional<LiveSequence> live_;
    ChatThread thread_;
    std::int64_t evicted_ = 0;
    bool first_left_ = false;
};

}  // namespace mr::decode
