#include "text/chat_tools.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "formats/json_order.h"

namespace mr::text {
namespace {

constexpr const char* kProbeName = "probe_of_tools";
constexpr const char* kProbe =
    R"(tools=[{"type":"function","function":{"name":"probe_of_tools","description":"Probes.",)"
    R"("parameters":{"type":"object","properties":{"text":{"type":"string",)"
    R"("description":"A text."}},"required":["text"]}}}])";

std::string call_text(const ChatCall& call) {
    return fmt::format(R"({{"name": {}, "arguments": {}}})", formats::json_quoted(call.name),
                       call.arguments);
}

std::string calls_text(const std::vector<ChatCall>& calls) {
    if (calls.size() == 1) return call_text(calls[0]);
    std::string out = "[";
    for (const ChatCall& call : calls) out += (out.size() > 1 ? ", " : "") + call_text(call);
    return out + "]";
}

std::string description(const std::string& tools, const grammar::ToolChoice& choice) {
    std::string out = choice.required ? "Call " : "You can call ";
    out += choice.only.empty() ? "one of these tools" : "the tool " + choice.only;
    if (choice.several) out += ", or several";
    out += R"(. To call a tool, answer with nothing but {"name": NAME, "arguments": {...}})";
    if (choice.several) out += ", or with a list of these";
    out += ". The tools:\n";
    const formats::JsonDocument document = formats::JsonDocument::parse(tools, "tools");
    for (const formats::JsonValue tool : document.root()) {
        out += formats::dump_in_file_order(tool["function"]) + '\n';
    }
    return out;
}

void append_paragraph(std::string& text, std::string_view more) {
    if (!text.empty() && !more.empty()) text += "\n\n";
    text += more;
}

}  // namespace

ToolTemplate try_tools(const Tokenizer& tokenizer, const ChatOptions& options) {
    ChatOptions with = options;
    with.arguments.emplace_back(kProbe);
    const ChatMessage talk[] = {{"user", "Hi"},
                                {"assistant", "", {{"probe0001", kProbeName, R"({"text":"Hi"})"}}},
                                {"tool", "Hi", {}, "probe0001", kProbeName}};
    std::string shown, called;
    try {
        const ChatWriter writer(tokenizer, std::move(with));
        shown = writer.render({talk, 1}, true);
        called = writer.render(talk, true);
    } catch (const Error&) {
        return {};  // the template refuses tools
    }
    const auto has = [](const std::string& text, std::string_view part) {
        return text.find(part) != std::string::npos;
    };
    // Calls that are not JSON: the model gets the plain form.
    if (!has(shown, kProbeName) || has(shown + called, "<function=") ||
        has(shown + called, "<arg_key>")) {
        return {};
    }
    if (has(called, "<tool_call>")) return {true, {"<tool_call>", "</tool_call>"}};
    return {true, {}};
}

std::vector<ChatMessage> without_tools(std::span<const ChatMessage> messages,
                                       const std::string& tools,
                                       const grammar::ToolChoice& choice) {
    std::vector<ChatMessage> out;
    bool described = !tools.empty();  // `out` holds only the description so far
    if (described) out.push_back({"system", description(tools, choice)});
    bool results = false;  // the last message holds tool results
    for (const ChatMessage& m : messages) {
        if (m.role == "system" && std::exchange(described, false)) {
            std::string text = m.content;
            append_paragraph(text, out[0].content);
            out[0].content = std::move(text);
            continue;
        }
        described = false;
        if (m.role == "tool") {
            const std::string text = fmt::format(
                "Result of {}:\n{}", m.answerer.empty() ? "the tool" : m.answerer, m.content);
            // Formats expect users and assistants in turn.
            if (!std::exchange(results, true)) out.push_back({"user"});
            append_paragraph(out.back().content, text);
            continue;
        }
        if (m.role == "user" && results) {
            append_paragraph(out.back().content, m.content);
        } else {
            out.push_back({m.role, m.content});
            if (!m.calls.empty()) append_paragraph(out.back().content, calls_text(m.calls));
        }
        results = false;
    }
    return out;
}

}  // namespace mr::text
