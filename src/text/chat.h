// Chat formats: how a conversation is written for a model that was
// trained on one of them. Used for models without a template, or with
// one that cannot be executed; chat_writer.h executes templates.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text {

enum class ChatFormat {
    plain,           // not recognised: "User: ...\nAssistant: ..."
    chatml,          // <|im_start|>user\n...<|im_end|>\n
    llama2,          // <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s>
    llama3,          // <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>
    mistral,         // <s>[INST] ... [/INST]...</s>, as in Mistral 7B's first templates
    mistral_v1,      // <s> [INST] ... [/INST] ...</s>
    mistral_v3,      // <s>[INST] ...[/INST] ...</s>
    mistral_tekken,  // <s>[INST]...[/INST]...</s>
};

// A call of a tool by an assistant.
struct ChatCall {
    std::string id{};
    std::string name{};
    std::string arguments{};  // a JSON object
};

struct ChatMessage {
    std::string
        role{};  // "system", "user" or "assistant"; with templates that know tools also "tool"
    std::string content{};
    std::vector<ChatCall> calls{};      // if the role is "assistant"
    std::string answers{}, answerer{};  // if it is "tool": the call's id, and the tool's name
};

// A conversation as text, with the ranges of bytes that users wrote.
struct ChatText {
    std::string bytes{};
    std::vector<LiteralRange> user{};  // in order, without overlap

    ChatText slice(std::size_t begin, std::size_t end = std::string::npos) const;
};

std::string_view chat_format_name(ChatFormat format);
// The format that --chat-template names: plain, chatml, llama2, llama3, mistral, mistral-v1,
// mistral-v3 or mistral-tekken.
std::optional<ChatFormat> chat_format_named(std::string_view word);

// From the model's template or, if it has none, from the special tokens in its vocabulary.
ChatFormat detect_chat_format(const Tokenizer& tokenizer);
ChatFormat detect_chat_format(std::string_view chat_template);

// The conversation as text, with BOS if the format begins with one. Formats without a place for
// system messages put them before the next user message, or make a user's turn of them if an answer
// or the end comes first. Throws Error (usage) for another role than
// the three.
ChatText write_chat(ChatFormat format, std::span<const ChatMessage> messages,
                    bool add_generation_prompt);
std::string render_chat(ChatFormat format, std::span<const ChatMessage> messages,
                        bool add_generation_prompt);

// The same as ids. Special tokens spelled out in
// a message stay text unless `parse_special`.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                      std::span<const ChatMessage> messages,
                                      bool add_generation_prompt, bool parse_special = false);

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& text,
                                      bool parse_special = false);

// The texts that end an answer; the tokenizer's is_end_of_generation() knows the ids.
std::vector<std::string> chat_stops(ChatFormat format);

}  // namespace mr::text
