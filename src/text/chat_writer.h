// Conversations as token ids: by the template that the model carries, or one that is given instead,
// or in a recognised format (text/chat.h) where there is no template that can be executed.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/jinja/template.h"

namespace mr::text {

struct ChatOptions {
    std::string template_file{};  // instead of the model's own template
    // Further variables of the template, as NAME=VALUE: VALUE is JSON, or a text where it is none.
    std::vector<std::string> arguments{};
    bool parse_special = false;    // special tokens written out in a message become their ids
    std::optional<std::tm> now{};  // the time that templates see; none: when the writer was made
};

// Whether a template's variable may have this name: letters, digits and _, no digit first.
bool is_template_variable(std::string_view name);

class ChatWriter {
  public:
    // The tokenizer must outlive the writer. Throws Error: for a template file that cannot be read
    // or executed (input), for arguments that are none (usage). A template of the model's own that
    // cannot be executed is no error: the notice says so.
    ChatWriter(const Tokenizer& tokenizer, ChatOptions options);

    // Throws Error (input) where the template refuses the conversation, or fails on it.
    std::vector<std::int32_t> encode(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt) const;
    std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
    // Both in two steps, for conversations of which a part is ids already: the text, and the ids of
    // it or of a part that goes on behind the token `after`.
    ChatText write(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
    std::vector<std::int32_t> encode(const ChatText& text) const;
    std::vector<std::int32_t> encode_rest(const ChatText& rest, std::int32_t after) const;

    // "its own template", "the template FILE", "the ChatML format".
    std::string name() const;
    // Why the format is not the model's own; empty where it is. One line.
    const std::string& notice() const { return notice_; }
    // What ends an answer, as text; the tokenizer's is_end_of_generation() knows the ids.
    std::vector<std::string> stops() const;

  private:
    void take_arguments();
    const jinja::Value* variable(std::string_view name) const;  // null: none
    void load_template();
    void try_template() const;
    jinja::MarkedText execute(std::span<const ChatMessage> messages, bool prompt) const;

    const Tokenizer& tokenizer_;
    ChatOptions options_;
    jinja::Variables variables_;  // all but the messages
    std::unique_ptr<const jinja::Template> template_;
    ChatFormat format_;
    std::string notice_;
};

}  // namespace mr::text
