#include "text/chat_writer.h"

#include <algorithm>

#include "core/error.h"
#include "core/mapped_file.h"
#include "text/jinja/value_json.h"

namespace mr::text {
namespace {

using jinja::Value;

Value arguments_of(const ChatCall& call) {
    try {
        return jinja::value_of_json(call.arguments, true);
    } catch (const jinja::Failure& failure) {
        throw Error::input({.field = "arguments of " + call.name, .problem = failure.problem});
    }
}

// As transformers passes them: the arguments are a mapping, not a string.
Value call_list(std::span<const ChatCall> calls) {
    std::vector<Value> list;
    for (const ChatCall& call : calls) {
        list.push_back(
            Value::map({{Value::text("id"), Value::from_user(call.id)},
                        {Value::text("type"), Value::text("function")},
                        {Value::text("function"),
                         Value::map({{Value::text("name"), Value::from_user(call.name)},
                                     {Value::text("arguments"), arguments_of(call)}})}}));
    }
    return Value::list(std::move(list));
}

Value message_list(std::span<const ChatMessage> messages) {
    std::vector<Value> list;
    for (const ChatMessage& m : messages) {
        std::vector<std::pair<Value, Value>> entries = {
            {Value::text("role"), Value::from_user(m.role)},
            {Value::text("content"), Value::from_user(m.content)}};
        // Set only if present, because templates test whether they are defined.
        if (!m.calls.empty()) entries.emplace_back(Value::text("tool_calls"), call_list(m.calls));
        if (!m.answers.empty()) {
            entries.emplace_back(Value::text("tool_call_id"), Value::from_user(m.answers));
        }
        if (!m.answerer.empty()) {
            entries.emplace_back(Value::text("name"), Value::from_user(m.answerer));
        }
        list.push_back(Value::map(std::move(entries)));
    }
    return Value::list(std::move(list));
}

}  // namespace

bool is_template_variable(std::string_view name) {
    const auto letter = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    };
    return !name.empty() && letter(name.front()) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

std::span<const std::string_view> text_beginnings() {
    static constexpr std::string_view kBeginnings[] = {
        "Once upon a time, in a small village by the sea, there lived",
        "There once was a little girl named", "Long ago, behind a hedge of wild roses,",
        "Far, far away,"};
    return kBeginnings;
}

ChatWriter::ChatWriter(const Tokenizer& tokenizer, ChatOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), format_(detect_chat_format(tokenizer)) {
    // Read once: a prompt that changed with the clock would never match the prompt cache.
    if (!options_.now) options_.now = jinja::local_time();
    const TokenizerData& data = tokenizer_.data();
    const auto token = [&](const char* name, std::optional<std::int32_t> id) {
        if (id)
            variables_.emplace_back(name, Value::text(data.tokens[static_cast<std::size_t>(*id)]));
    };
    token("bos_token", data.bos);
    token("eos_token", data.eos);
    token("unk_token", data.unk);
    token("pad_token", data.pad);
    take_arguments();
    load_template();
}

void ChatWriter::take_arguments() {
    for (const std::string& argument : options_.arguments) {
        const std::size_t equals = argument.find('=');
        const std::string name = argument.substr(0, equals);
        if (equals == std::string::npos || !is_template_variable(name)) {
            throw Error::usage({.field = "--template-arg",
                                .value = argument,
                                .problem = "is not of the form NAME=VALUE"});
        }
        const std::string text = argument.substr(equals + 1);
        Value value = Value::from_user(text);
        try {
            value = jinja::value_of_json(text, true);
        } catch (const jinja::Failure&) {
            // Not JSON: a plain string.
        }
        variables_.emplace_back(name, std::move(value));
    }
    // transformers always defines these two: templates test whether they are none, not whether they
    // are defined.
    for (const char* name : {"tools", "documents"}) {
        if (!variable(name)) variables_.emplace_back(name, jinja::None{});
    }
}

const Value* ChatWriter::variable(std::string_view name) const {
    for (const auto& [known, value] : variables_) {
        if (known == name) return &value;
    }
    return nullptr;
}

void ChatWriter::load_template() {
    const TokenizerData& data = tokenizer_.data();
    if (const auto named = chat_format_named(options_.template_file)) {
        format_ = *named;
        return;
    }
    if (!options_.template_file.empty()) {
        const std::string source = read_text_file(options_.template_file, jinja::kMaxTemplateBytes);
        template_ = std::make_unique<const jinja::Template>(source, options_.template_file);
        try_template();
        return;
    }
    const bool tools = variable("tools")->truthy();
    const std::string& source =
        tools && !data.tool_template.empty() ? data.tool_template : data.chat_template;
    if (source.empty()) {
        if (format_ == ChatFormat::plain) {
            continues_texts_ = true;
            notice_ = "this model has no chat template; using " + name() +
                      " (--chat-template FILE gives one). It may continue the text instead of "
                      "answering";
        }
        return;
    }
    try {
        const std::string& file = data.template_file.empty() ? data.name : data.template_file;
        template_ = std::make_unique<const jinja::Template>(source, file + ": chat template");
        try_template();
    } catch (const Error& error) {
        if (options_.require_template) throw;
        template_ = nullptr;
        notice_ = std::string(error.what()) + "; using " + name() + " instead";
    }
}

// Unsupported constructs show only when a template is executed. A refusal is not a fault.
void ChatWriter::try_template() const {
    const ChatMessage talk[] = {{"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
    for (const std::size_t count : {1, 3}) {
        try {
            execute({talk, count}, true);
        } catch (const jinja::Refusal&) {
        }
    }
}

jinja::MarkedText ChatWriter::execute(std::span<const ChatMessage> messages, bool prompt) const {
    jinja::Variables variables = variables_;
    variables.emplace_back("messages", message_list(messages));
    variables.emplace_back("add_generation_prompt", prompt);
    return template_->render(variables, {.now = options_.now});
}

std::string ChatWriter::render(std::span<const ChatMessage> messages,
                               bool add_generation_prompt) const {
    return write(messages, add_generation_prompt).bytes;
}

ChatText ChatWriter::write(std::span<const ChatMessage> messages,
                           bool add_generation_prompt) const {
    if (!template_) return write_chat(format_, messages, add_generation_prompt);
    const jinja::MarkedText out = execute(messages, add_generation_prompt);
    return {out.bytes(), {out.user().begin(), out.user().end()}};
}

std::vector<std::int32_t> ChatWriter::encode(std::span<const ChatMessage> messages,
                                             bool add_generation_prompt) const {
    return encode(write(messages, add_generation_prompt));
}

std::vector<std::int32_t> ChatWriter::encode(const ChatText& text) const {
    if (!template_) return encode_chat(tokenizer_, text, options_.parse_special);
    // Encoded as a whole, without added special tokens: the template itself writes BOS.
    EncodeOptions options{.add_special = false};
    if (!options_.parse_special) options.literal = text.user;
    return tokenizer_.encode(text.bytes, options);
}

std::vector<std::int32_t> ChatWriter::encode_rest(const ChatText& rest, std::int32_t after) const {
    EncodeOptions options{.add_special = false, .after = after};
    if (!options_.parse_special) options.literal = rest.user;
    return tokenizer_.encode(rest.bytes, options);
}

std::string ChatWriter::name() const {
    if (!template_) return "the " + std::string(chat_format_name(format_)) + " format";
    if (!options_.template_file.empty()) return "the template " + options_.template_file;
    return "its own template";
}

std::vector<std::string> ChatWriter::stops() const {
    // Without a recognised format only token ids end an answer.
    if (template_ && (format_ == ChatFormat::plain || !options_.template_file.empty())) return {};
    return chat_stops(format_);
}

}  // namespace mr::text
