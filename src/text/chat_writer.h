// Conversations as token ids: by the model's template, by a template given instead, or in a
// recognised format (text/chat.h) if no template can be executed.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/jinja/template.h"

namespace mr::text {

struct ChatOptions {
    // Replaces the model's own template: a file, or a format by name (chat_format_named()).
    std::string template_file{};
    // Further template variables, as NAME=VALUE; VALUE is JSON, or else a plain string.
    std::vector<std::string> arguments{};
    bool parse_special = false;    // special tokens spelled out in a message become their ids
    std::optional<std::tm> now{};  // the time templates see; none: when the writer was made
    // If the model's own template cannot be executed with these arguments, that is an error.
    bool require_template = false;
};

// Whether this is a valid template variable: letters, digits and _, not starting with a digit.
bool is_template_variable(std::string_view name);

// What a person who meets a model that continues texts (below) may begin with: beginnings of
// stories, which the bundled model knows and every other one can continue, too.
std::span<const std::string_view> text_beginnings();

class ChatWriter {
  public:
    // The tokenizer must outlive the writer. Throws Error for a template file that cannot be read
    // or executed (input), and for invalid arguments (usage). If the model's own template cannot be
    // executed, that is an error (input) only if the options say so; otherwise notice() tells.
    ChatWriter(const Tokenizer& tokenizer, ChatOptions options);

    // Throws Error (input) if the template refuses the conversation or fails on it.
    std::vector<std::int32_t> encode(std::span<const ChatMessage> messages,
                                     bool add_generation_prompt) const;
    std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
    // encode() in two steps, if a part of the conversation is already encoded: write() gives the
    // text; encode() its ids, and encode_rest() those of a rest that follows the token `after`.
    ChatText write(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
    std::vector<std::int32_t> encode(const ChatText& text) const;
    std::vector<std::int32_t> encode_rest(const ChatText& rest, std::int32_t after) const;

    bool has_template() const { return template_ != nullptr; }
    // The model was not made for conversations: it has no template, none was given, and its
    // vocabulary has no format's special tokens. Such a model continues texts. (A template that
    // cannot be executed is still the sign of a model for conversations.)
    bool continues_texts() const { return continues_texts_; }
    // "its own template", "the template FILE", "the ChatML format".
    std::string name() const;
    // Why the model's own format is not used, in one line; empty if it is used.
    const std::string& notice() const { return notice_; }
    // The texts that end an answer; the tokenizer's is_end_of_generation() knows the ids.
    std::vector<std::string> stops() const;

  private:
    void take_arguments();
    const jinja::Value* variable(std::string_view name) const;  // null: none
    void load_template();
    void try_template() const;
    jinja::MarkedText execute(std::span<const ChatMessage> messages, bool prompt) const;

    const Tokenizer& tokenizer_;
    ChatOptions options_;
    jinja::Variables variables_;  // all except the messages
    std::unique_ptr<const jinja::Template> template_;
    ChatFormat format_;
    bool continues_texts_ = false;
    std::string notice_;
};

}  // namespace mr::text
