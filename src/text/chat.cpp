#include "text/chat.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace mr::text {
namespace {

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kBlank = " \t\n\r\f\v";
    const std::size_t first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Text under construction.
struct Rendering {
    ChatText text{};

    void mark(std::string_view markup) { text.bytes += markup; }
    void content(std::string_view written) {
        text.user.push_back({text.bytes.size(), text.bytes.size() + written.size()});
        text.bytes += written;
    }
};

void render_chatml(Rendering& out, std::span<const ChatMessage> messages, bool prompt) {
    for (const ChatMessage& m : messages) {
        out.mark("<|im_start|>" + m.role + "\n");
        out.content(m.content);
        out.mark("<|im_end|>\n");
    }
    if (prompt) out.mark("<|im_start|>assistant\n");
}

void render_llama3(Rendering& out, std::span<const ChatMessage> messages, bool prompt) {
    out.mark("<|begin_of_text|>");
    for (const ChatMessage& m : messages) {
        out.mark("<|start_header_id|>" + m.role + "<|end_header_id|>\n\n");
        out.content(trimmed(m.content));
        out.mark("<|eot_id|>");
    }
    if (prompt) out.mark("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// The formats with [INST], of Llama-2 and Mistral. They have no turn of the system: what it says is
// part of the user's next turn.
struct InstMarks {
    const char *begin, *open, *system, *system_end, *close, *answer, *answer_end;
    bool trims;
};

InstMarks inst_marks(ChatFormat format) {
    switch (format) {
        case ChatFormat::llama2:
            return {"",         "<s>[INST] ", "<<SYS>>\n", "\n<</SYS>>\n\n",
                    " [/INST]", " ",          " </s>",     true};
        case ChatFormat::mistral_v1:
            return {"<s>", " [INST] ", "", "\n\n", " [/INST]", " ", "</s>", false};
        case ChatFormat::mistral_v3:
            return {"<s>", "[INST] ", "", "\n\n", "[/INST]", " ", "</s>", false};
        case ChatFormat::mistral_tekken:
            return {"<s>", "[INST]", "", "\n\n", "[/INST]", "", "</s>", false};
        default:
            return {"<s>", "[INST] ", "", "\n\n", " [/INST]", "", "</s>", false};
    }
}

void render_inst(Rendering& out, InstMarks marks, std::span<const ChatMessage> messages) {
    const auto content = [&](std::string_view text) {
        out.content(marks.trims ? trimmed(text) : text);
    };
    std::string system;  // not written yet
    const auto user = [&](std::string_view text) {
        out.mark(marks.open);
        if (!system.empty()) {
            out.mark(marks.system);
            out.content(std::exchange(system, {}));
            out.mark(marks.system_end);
        }
        content(text);
        out.mark(marks.close);
    };
    // Without a user's turn to be part of, it is one.
    const auto system_alone = [&] {
        if (!system.empty()) user(std::exchange(system, {}));
    };
    out.mark(marks.begin);
    for (const ChatMessage& m : messages) {
        if (m.role == "system") {
            if (!system.empty() && !m.content.empty()) system += "\n\n";
            system += m.content;
        } else if (m.role == "user") {
            user(m.content);
        } else {
            system_alone();
            out.mark(marks.answer);
            content(m.content);
            out.mark(marks.answer_end);
        }
    }
    system_alone();
}

void render_plain(Rendering& out, std::span<const ChatMessage> messages, bool prompt) {
    for (const ChatMessage& m : messages) {
        if (m.role == "user") out.mark("User: ");
        if (m.role == "assistant") out.mark("Assistant: ");
        out.content(trimmed(m.content));
        out.mark(m.role == "system" ? "\n\n" : "\n");
    }
    if (prompt) out.mark("Assistant:");
}

}  // namespace

ChatText ChatText::slice(std::size_t begin, std::size_t end) const {
    end = std::min(end, bytes.size());
    ChatText out{bytes.substr(begin, end - begin)};
    for (const LiteralRange& range : user) {
        const std::size_t from = std::max(range.begin, begin), to = std::min(range.end, end);
        if (from < to) out.user.push_back({from - begin, to - begin});
    }
    return out;
}

ChatText write_chat(ChatFormat format, std::span<const ChatMessage> messages,
                    bool add_generation_prompt) {
    for (const ChatMessage& m : messages) {
        if (m.role != "system" && m.role != "user" && m.role != "assistant") {
            throw Error::usage({.field = "role",
                                .value = m.role,
                                .problem = "is not the role of a message",
                                .remedy = "use system, user or assistant"});
        }
    }
    Rendering out;
    switch (format) {
        case ChatFormat::plain:
            render_plain(out, messages, add_generation_prompt);
            break;
        case ChatFormat::chatml:
            render_chatml(out, messages, add_generation_prompt);
            break;
        case ChatFormat::llama3:
            render_llama3(out, messages, add_generation_prompt);
            break;
        default:
            render_inst(out, inst_marks(format), messages);
    }
    return std::move(out.text);
}

std::string_view chat_format_name(ChatFormat format) {
    switch (format) {
        case ChatFormat::plain:
            return "plain (User: / Assistant:)";
        case ChatFormat::chatml:
            return "ChatML";
        case ChatFormat::llama2:
            return "Llama-2";
        case ChatFormat::llama3:
            return "Llama-3";
        case ChatFormat::mistral:
            return "Mistral";
        case ChatFormat::mistral_v1:
            return "Mistral v1";
        case ChatFormat::mistral_v3:
            return "Mistral v3";
        case ChatFormat::mistral_tekken:
            return "Mistral (Tekken)";
    }
    return "";
}

std::optional<ChatFormat> chat_format_named(std::string_view word) {
    constexpr std::pair<std::string_view, ChatFormat> kNamed[] = {
        {"plain", ChatFormat::plain},           {"chatml", ChatFormat::chatml},
        {"llama2", ChatFormat::llama2},         {"llama3", ChatFormat::llama3},
        {"mistral", ChatFormat::mistral},       {"mistral-v1", ChatFormat::mistral_v1},
        {"mistral-v3", ChatFormat::mistral_v3}, {"mistral-tekken", ChatFormat::mistral_tekken}};
    for (const auto& [name, format] : kNamed) {
        if (name == word) return format;
    }
    return std::nullopt;
}

ChatFormat detect_chat_format(std::string_view chat_template) {
    const auto has = [&](std::string_view part) {
        return chat_template.find(part) != std::string_view::npos;
    };
    if (has("<|im_start|>")) return ChatFormat::chatml;
    if (has("<|start_header_id|>")) return ChatFormat::llama3;
    if (!has("[INST]")) return ChatFormat::plain;
    if (has("<<SYS>>")) return ChatFormat::llama2;
    if (has("[SYSTEM_PROMPT]")) return ChatFormat::plain;  // v7: a later family
    // The four Mistral formats differ in the spaces inside the template's string literals.
    if (has("' [INST]") || has("\" [INST]")) return ChatFormat::mistral_v1;
    if (has("[INST]'") || has("[INST]\"")) {
        // The opening mark decides: the closing one ends its literal in every version.
        return ChatFormat::mistral_tekken;
    }
    return has(" [/INST]") ? ChatFormat::mistral : ChatFormat::mistral_v3;
}

ChatFormat detect_chat_format(const Tokenizer& tokenizer) {
    if (!tokenizer.chat_template().empty()) return detect_chat_format(tokenizer.chat_template());
    const auto has = [&](std::string_view token) {
        const auto id = tokenizer.find(token);
        return id && tokenizer.is_special(*id);
    };
    if (has("<|im_start|>") && has("<|im_end|>")) return ChatFormat::chatml;
    if (has("<|start_header_id|>") && has("<|eot_id|>")) return ChatFormat::llama3;
    if (has("[INST]") && has("[/INST]")) return ChatFormat::mistral_v3;
    return ChatFormat::plain;
}

std::string render_chat(ChatFormat format, std::span<const ChatMessage> messages,
                        bool add_generation_prompt) {
    return write_chat(format, messages, add_generation_prompt).bytes;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                      std::span<const ChatMessage> messages,
                                      bool add_generation_prompt, bool parse_special) {
    return encode_chat(tokenizer, write_chat(format, messages, add_generation_prompt),
                       parse_special);
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, const ChatText& text,
                                      bool parse_special) {
    EncodeOptions options{.add_special = false};
    if (!parse_special) options.literal = text.user;
    auto ids = tokenizer.encode(text.bytes, options);
    const TokenizerData& data = tokenizer.data();
    // ChatML does not define BOS: the tokenizer decides.
    if (data.add_bos() && (ids.empty() || ids.front() != *data.bos)) {
        ids.insert(ids.begin(), *data.bos);
    }
    return ids;
}

std::vector<std::string> chat_stops(ChatFormat format) {
    switch (format) {
        case ChatFormat::plain:
            return {"\nUser:"};
        case ChatFormat::chatml:
            return {"<|im_end|>"};
        case ChatFormat::llama3:
            return {"<|eot_id|>"};
        default:
            return {"</s>"};
    }
}

}  // namespace mr::text
