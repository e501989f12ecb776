// Chat formats: how a history of messages is written for a model that was trained on one of them.
// For models without a template of their own, or with one that cannot be executed; chat_writer.h
// executes them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace mr::text {

enum class ChatFormat {
    plain,           // none recognised: "User: ...\nAssistant: ..."
    chatml,          // <|im_start|>user\n...<|im_end|>\n
    llama2,          // <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s>
    llama3,          // <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>
    mistral,         // <s>[INST] ... [/INST]...</s>, as Mistral 7B's first templates have it
    mistral_v1,      // <s> [INST] ... [/INST] ...</s>
    mistral_v3,      // <s>[INST] ...[/INST] ...</s>
    mistral_tekken,  // <s>[INST]...[/INST]...</s>
};

// A tool that an assistant called.
struct ChatCall {
    std::string id{};
    std::string name{};
    std::string arguments{};  // a JSON object
};

struct ChatMessage {
    std::string
        role{};  // "system", "user" or "assistant"; of templates that know tools also "tool"
    std::string content{};
    std::vector<ChatCall> calls{};      // of an assistant
    std::string answers{}, answerer{};  // of a tool: the call's id, and the tool's name
};

// A conversation as text that knows which of its bytes people wrote.
struct ChatText {
    std::string bytes{};
    std::vector<LiteralRange> user{};  // in order, without overlap

    ChatText slice(std::size_t begin, std::size_t end = std::string::npos) const;
};

std::string_view chat_format_name(ChatFormat format);

// From the model's template or, where it has none, from the special tokens in its vocabulary.
ChatFormat detect_chat_format(const Tokenizer& tokenizer);
ChatFormat detect_chat_format(std::string_view chat_template);

// The history as text, BOS first where the format begins with one. Formats without a place for a
// system message put it before the first user message.
// Throws Error (usage) for a role that is none of the three.
ChatText write_chat(ChatFormat format, std::span<const ChatMessage> messages,
                    bool add_generation_prompt);
std::string render_chat(ChatFormat format, std::span<const ChatMessage> messages,
                        bool add_generation_prompt);

// The same as ids. Special tokens that are written out inside a message stay text, unless
// `parse_special`.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                      std::span<const ChatMessage> messages,
                                      bool add_generation_prompt, bool parse_special = false);

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& text,
                                      bool parse_special = false);

// What ends an answer, as text; the tokenizer's is_end_of_generation() knows the ids.
std::vector<std::string> chat_stops(ChatFormat format);

}  // namespace mr::text
