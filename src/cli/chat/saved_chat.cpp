#include "cli/chat/saved_chat.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "cli/json.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/output_file.h"
#include "formats/json.h"

namespace mr::cli {
namespace {

constexpr std::size_t kMostChatBytes = std::size_t{16} << 20;
constexpr std::size_t kMostMessages = 100'000;

Error no_chat(const std::string& path, std::string field, std::string problem) {
    return Error::input({.file = path,
                         .field = std::move(field),
                         .problem = std::move(problem),
                         .remedy = "/load reads what /save wrote"});
}

// The only function here that reads JSON.
std::vector<text::ChatMessage> parse_chat(const std::string& path, const std::string& text) {
    const auto document = formats::JsonDocument::parse(text, path, "", {.depth = 8});
    const formats::JsonValue json = document.root();
    if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
        throw no_chat(path, "messages", "is not there, or not a list");
    }
    if (json["messages"].size() > kMostMessages) {
        throw no_chat(path, "messages", fmt::format("are more than {}", kMostMessages));
    }
    std::vector<text::ChatMessage> messages;
    for (const formats::JsonValue message : json["messages"]) {
        const auto text_of = [&](const char* key) {
            if (!message.is_object() || !message.contains(key) || !message[key].is_string()) {
                throw no_chat(path, fmt::format("messages[{}]", messages.size()),
                              fmt::format("has no text called '{}'", key));
            }
            return message[key].get<std::string>();
        };
        messages.push_back({text_of("role"), text_of("content")});
    }
    return messages;
}

}  // namespace

std::vector<text::ChatMessage> load_chat(const std::string& path) {
    std::vector<text::ChatMessage> messages =
        parse_chat(path, read_text_file(path, kMostChatBytes));
    const std::size_t first = !messages.empty() && messages[0].role == "system" ? 1 : 0;
    for (std::size_t i = first; i < messages.size(); ++i) {
        const char* const role = (i - first) % 2 == 0 ? "user" : "assistant";
        if (messages[i].role == role) continue;
        throw no_chat(path, fmt::format("messages[{}].role", i),
                      fmt::format("is not '{}': questions and answers take turns", role));
    }
    if ((messages.size() - first) % 2 != 0) {
        throw no_chat(path, "messages", "end with a question that has no answer");
    }
    return messages;
}

void save_chat(const std::string& path, const std::string& model,
               const std::vector<text::ChatMessage>& messages) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) {
        try {
            load_chat(path);
        } catch (const Error&) {
            throw Error::input({.file = path,
                                .problem = "exists and is not a saved conversation",
                                .remedy = "choose another name"});
        }
    }
    Json json = {{"model", model}, {"messages", Json::array()}};
    for (const text::ChatMessage& message : messages) {
        json["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    OutputFile file(path, S_IRUSR | S_IWUSR);  // a conversation is private, as the history of lines
    file.write(json_text(json));
    file.commit();
}

}  // namespace mr::cli
