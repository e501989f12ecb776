// Conversations: from the messages of a request to the tokens of a prompt.
#include <fmt/format.h>

#include <algorithm>

#include "core/printable.h"
#include "formats/json_order.h"
#include "serve/api.h"

namespace mr::serve {
namespace {

using formats::JsonValue;
using text::ChatMessage;

constexpr std::size_t kMostArguments = 64 << 10;  // bytes passed to a template

// A text, or parts of type text.
std::string content_text(JsonValue content, const std::string& field) {
    if (content.is_string()) return std::string(content.text());
    if (!content.is_array()) wrong(field, "must be a text or a list of parts");
    std::string out;
    for (const JsonValue part : content) {
        const auto text = part.find_set("text");
        if (!(part["type"] == "text") || !text || !text->is_string()) {
            wrong(field, "has a part that is not text: this model only reads text");
        }
        out += text->text();
    }
    return out;
}

std::string text_of(JsonValue object, const char* name, const std::string& field) {
    const auto value = object.find_set(name);
    if (!value || !value->is_string()) wrong(fmt::format("{}.{}", field, name), "must be a text");
    return std::string(value->text());
}

// OpenAI's arguments are JSON in a string; some clients send none for a call without arguments.
std::string arguments_of(const std::string& text, const std::string& field) {
    if (text.empty()) return "{}";
    try {
        const auto document =
            formats::JsonDocument::parse(text, field, {}, {.repeated_keys = true});
        if (document.root().is_object()) return formats::dump_in_file_order(document.root());
    } catch (const Error&) {
    }
    wrong(field, "must be a JSON object, as a text");
}

std::vector<text::ChatCall> openai_calls(JsonValue calls, const std::string& field) {
    if (!calls.is_array()) wrong(field, "must be a list");
    std::vector<text::ChatCall> out;
    for (const JsonValue call : calls) {
        const std::string here = fmt::format("{}[{}]", field, out.size());
        const JsonValue function = call["function"];
        if (!function.is_object()) wrong(here + ".function", "must be an object");
        out.push_back({text_of(call, "id", here), text_of(function, "name", here + ".function"),
                       arguments_of(text_of(function, "arguments", here + ".function"),
                                    here + ".function.arguments")});
    }
    return out;
}

// The name of the tool whose call had this id; empty: unknown.
std::string called(const std::vector<ChatMessage>& messages, const std::string& id) {
    for (auto m = messages.rbegin(); m != messages.rend(); ++m) {
        for (const text::ChatCall& call : m->calls) {
            if (call.id == id) return call.name;
        }
    }
    return {};
}

void add_openai(std::vector<ChatMessage>& out, JsonValue message, const std::string& field) {
    std::string role = text_of(message, "role", field);
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
        wrong(field + ".role",
              fmt::format("is '{}', but must be system, developer, user, assistant or tool",
                          printable(role, 40)));
    }
    ChatMessage made{role};
    if (const auto calls = message.find_set("tool_calls"); calls && role == "assistant") {
        made.calls = openai_calls(*calls, field + ".tool_calls");
    }
    if (role == "tool") {
        made.answers = text_of(message, "tool_call_id", field);
        made.answerer = called(out, made.answers);
    }
    const auto content = message.find_set("content");
    if (content) {
        made.content = content_text(*content, field + ".content");
    } else if (made.calls.empty()) {
        wrong(field + ".content", "is missing");
    }
    out.push_back(std::move(made));
}

// A content block of Anthropic's. Results become separate messages; all others continue the last
// one.
void add_block(std::vector<ChatMessage>& out, JsonValue block, const std::string& role,
               const std::string& field) {
    const JsonValue type = block["type"];
    if (type == "tool_result" && role == "user") {
        ChatMessage made{"tool"};
        made.answers = text_of(block, "tool_use_id", field);
        made.answerer = called(out, made.answers);
        const auto content = block.find_set("content");
        const auto failed = block.find_set("is_error");
        if (failed && failed->is_boolean() && failed->get<bool>()) made.content = "Error: ";
        if (content) made.content += content_text(*content, field + ".content");
        out.push_back(std::move(made));
        return;
    }
    // The thinking of earlier turns is not repeated to the model.
    const bool thinking = type == "thinking", redacted = type == "redacted_thinking";
    if (role == "assistant" && (thinking || redacted)) {
        text_of(block, thinking ? "thinking" : "data", field);
        return;
    }
    if (out.empty() || out.back().role != role) out.push_back({role});
    if (type == "tool_use" && role == "assistant") {
        const JsonValue input = block["input"];
        if (!input.is_object()) wrong(field + ".input", "must be an object");
        out.back().calls.push_back({text_of(block, "id", field), text_of(block, "name", field),
                                    formats::dump_in_file_order(input)});
    } else if (type == "text") {
        out.back().content += text_of(block, "text", field);
    } else {
        wrong(field,
              "must be text, an assistant's tool_use, thinking or redacted_thinking, or a user's "
              "tool_result");
    }
}

void add_anthropic(std::vector<ChatMessage>& out, JsonValue message, const std::string& field) {
    const std::string role = text_of(message, "role", field);
    if (role != "user" && role != "assistant") {
        wrong(field + ".role",
              fmt::format("is '{}', but must be user or assistant", printable(role, 40)));
    }
    const auto content = message.find_set("content");
    if (!content) wrong(field + ".content", "is missing");
    if (content->is_string()) {
        out.push_back({role, std::string(content->text())});
        return;
    }
    if (!content->is_array()) wrong(field + ".content", "must be a text or a list of blocks");
    std::vector<ChatMessage> own;
    int i = 0;
    for (const JsonValue block : *content) {
        add_block(own, block, role, fmt::format("{}.content[{}]", field, i++));
    }
    if (own.empty()) own.push_back({role});
    for (ChatMessage& made : own) {
        if (made.role == "tool") made.answerer = called(out, made.answers);
        out.push_back(std::move(made));
    }
}

bool has_tools(const std::vector<ChatMessage>& messages) {
    return std::any_of(messages.begin(), messages.end(),
                       [](const ChatMessage& m) { return m.role == "tool" || !m.calls.empty(); });
}

}  // namespace

Api::Conversation Api::conversation(const Fields& fields, bool anthropic) const {
    Conversation out;
    out.tools = tools(fields, anthropic);
    if (anthropic) {
        if (const auto system = fields.find("system")) {
            out.messages.push_back({"system", content_text(*system, "system")});
        }
    }
    int i = 0;
    const JsonValue messages = *fields.find("messages");
    for (const JsonValue message : messages) {
        const std::string field = fmt::format("messages[{}]", i++);
        if (!message.is_object()) wrong(field, "must be an object");
        (anthropic ? add_anthropic : add_openai)(out.messages, message, field);
    }
    const ChatMessage& last = out.messages.back();
    const bool last_is_answer = last.role == "assistant" && last.calls.empty();
    out.goes_on =
        anthropic ? last.role == "assistant"
                  : fields.find("continue_final_message") && fields.flag("continue_final_message");
    if (out.goes_on && !last_is_answer) {
        anthropic ? wrong("messages", "ends with tool calls: their results must follow")
                  : wrong("continue_final_message",
                          "needs a last message of the assistant, without tool calls");
    }
    return out;
}

// A writer for what the server's own lacks: tools, and variables of the request. The model's
// template must support them: another format would be a surprise.
std::optional<text::ChatWriter> Api::own_writer(const Conversation& conversation,
                                                const Fields& fields) const {
    text::ChatOptions options = options_.chat;
    options.require_template = chat_.has_template();
    const std::size_t usual = options.arguments.size();
    if (tool_template_.knows && !conversation.tools.json.empty()) {
        options.arguments.push_back("tools=" + conversation.tools.json);
    }
    const std::size_t with_tools = options.arguments.size();
    if (const auto given = fields.find("chat_template_kwargs")) {
        for (const auto& [name, value] : given->items()) {
            if (!text::is_template_variable(name)) {
                wrong(
                    "chat_template_kwargs",
                    fmt::format("has '{}', which is not a variable name: use letters, digits and _",
                                printable(name, 40)));
            }
            options.arguments.push_back(fmt::format("{}={}", name, value.dump()));
            if (options.arguments.back().size() > kMostArguments) {
                wrong("chat_template_kwargs", "is longer than 64 KiB");
            }
        }
    }
    if (options.arguments.size() == usual) return std::nullopt;
    const auto writer = [&](const char* field) {
        try {
            return std::optional<text::ChatWriter>(std::in_place, tokenizer_, options);
        } catch (const Error& error) {
            throw Failure::bad(field, error.what(), "invalid_value");
        }
    };
    if (options.arguments.size() == with_tools) return writer("tools");
    try {
        return writer("chat_template_kwargs");
    } catch (const Failure&) {
        options.arguments.resize(with_tools);  // Are the tools at fault?
        writer("tools");
        throw;
    }
}

// `stops`: stop strings of the conversation's format.
text::ChatText Api::written(const Conversation& conversation, const Fields& fields,
                            std::vector<std::int32_t>& ids, std::vector<std::string>& stops,
                            bool add_generation_prompt) const {
    if (options_.strict && chat_.continues_texts()) {
        throw Failure::bad("messages",
                           "this model has no chat template: give one with --chat-template, or use "
                           "/v1/completions",
                           "no_chat_template");
    }
    const std::optional<text::ChatWriter> own = own_writer(conversation, fields);
    const text::ChatWriter& writer = own ? *own : chat_;
    stops = writer.stops();
    try {
        std::span<const ChatMessage> messages = conversation.messages;
        if (conversation.goes_on) messages = messages.first(messages.size() - 1);
        std::vector<ChatMessage> plain;
        const Tools& tools = conversation.tools;
        if (!tool_template_.knows && (!tools.json.empty() || has_tools(conversation.messages))) {
            plain = text::without_tools(messages, tools.json, tools.choice);
            messages = plain;
        }
        text::ChatText text = writer.write(messages, add_generation_prompt || conversation.goes_on);
        if (conversation.goes_on) {
            const std::size_t begin = text.bytes.size();
            text.bytes += conversation.messages.back().content;
            text.user.push_back({begin, text.bytes.size()});
        }
        if (text.bytes.size() > longest_piece_ * static_cast<std::size_t>(desk_.most_positions()) &&
            !options_.generate.stream) {
            require_fits(text.bytes.size() / longest_piece_, "messages");
        }
        ids = writer.encode(text);
        return text;
    } catch (const Error& error) {
        throw Failure::bad("messages", error.what(), "invalid_value");
    }
}

}  // namespace mr::serve
