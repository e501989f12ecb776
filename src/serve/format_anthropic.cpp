// Messages in Anthropic's format: one choice, named events.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/json_writer.h"
#include "serve/answer.h"

namespace mr::serve {
namespace {

using formats::JsonWriter;

class MessagesFormat final : public Format {
  public:
    explicit MessagesFormat(FormatOptions options) : options_(std::move(options)) {}

    bool anthropic() const override { return true; }

    std::string begin() override {
        JsonWriter json;
        json.begin_object().member("type", "message_start").key("message");
        json.raw(message("", nullptr, false, 0)).end_object();
        return event_text(json.text(), "message_start");
    }

    std::string piece(int, const ChoiceText& text) override {
        if (!options_.calls) return part({CallPart::Kind::text, text.text});
        if (!reader_) reader_.emplace(*options_.calls);
        return parts(reader_->read(text.text));
    }

    std::string end(int, const ChoiceText& text) override {
        std::string out = reader_ ? parts(reader_->finish()) : "";
        out += close_block();
        JsonWriter json;
        json.begin_object().member("type", "message_delta").key("delta").begin_object();
        add_reason(json, &text, reader_ && reader_->called());
        json.end_object().key("usage").begin_object().member("output_tokens", text.drawn);
        json.end_object().end_object();
        return out + event_text(json.text(), "message_delta");
    }

    std::string last(const Usage&) override {
        return event_text(R"({"type":"message_stop"})", "message_stop");
    }
    std::string failed(const Failure& failure) override {
        return event_text(failure_json(failure, true), "error");
    }
    std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) override {
        CalledText made{choices[0].text};
        if (options_.calls) made = read_calls(*options_.calls, choices[0].text);
        std::string content;
        if (!made.text.empty() || made.calls.empty()) content = text_block(made.text);
        for (const CalledText::Call& call : made.calls) {
            if (!content.empty()) content += ',';
            // A call that was cut off has no valid JSON input, and must not be taken for a call.
            content += call.whole ? call_block(call.name, call.arguments)
                                  : text_block(fmt::format(R"({{"name": "{}", "arguments": {})",
                                                           call.name, call.arguments));
        }
        if (!made.rest.empty()) content += ',' + text_block(made.rest);
        return message(content, &choices[0], made.called(), usage.completion);
    }

  private:
    enum class Block { none, text, call };

    std::string parts(const std::vector<CallPart>& parts) {
        std::string out;
        for (const CallPart& one : parts) out += part(one);
        return out;
    }

    // Blocks follow one another; each is closed before the next begins.
    std::string part(const CallPart& part) {
        switch (part.kind) {
            case CallPart::Kind::text: {
                std::string out;
                if (open_ != Block::text) out = open_block(Block::text, text_block(""));
                return out + delta("text_delta", "text", part.bytes);
            }
            case CallPart::Kind::call:
                return open_block(Block::call, call_block(part.bytes, "{}"));
            case CallPart::Kind::arguments:
                return delta("input_json_delta", "partial_json", part.bytes);
            case CallPart::Kind::end:
                return close_block();
        }
        return {};
    }

    std::string open_block(Block kind, std::string_view block) {
        std::string out = close_block();
        open_ = kind;
        JsonWriter json;
        json.begin_object().member("type", "content_block_start").member("index", blocks_);
        json.key("content_block").raw(block).end_object();
        return out + event_text(json.text(), "content_block_start");
    }

    std::string close_block() {
        if (std::exchange(open_, Block::none) == Block::none) return {};
        JsonWriter json;
        json.begin_object().member("type", "content_block_stop").member("index", blocks_++);
        return event_text(json.end_object().text(), "content_block_stop");
    }

    std::string delta(const char* type, const char* name, std::string_view bytes) const {
        JsonWriter json;
        json.begin_object().member("type", "content_block_delta").member("index", blocks_);
        json.key("delta").begin_object().member("type", type).member(name, bytes);
        json.end_object().end_object();
        return event_text(json.text(), "content_block_delta");
    }

    static std::string text_block(std::string_view text) {
        JsonWriter json;
        return json.begin_object().member("type", "text").member("text", text).end_object().take();
    }

    std::string call_block(std::string_view name, std::string_view input) {
        JsonWriter json;
        json.begin_object()
            .member("type", "tool_use")
            .member("id", call_id(options_.id, 0, calls_++));
        return json.member("name", name).key("input").raw(input).end_object().take();
    }

    void add_reason(JsonWriter& json, const ChoiceText* text, bool called) const {
        json.key("stop_reason");
        if (!text) {
            json.null().key("stop_sequence").null();
            return;
        }
        // The conversation's format has its own stop strings.
        const bool asked = text->reason == decode::StopReason::stop_string &&
                           std::find(options_.stops.begin(), options_.stops.end(),
                                     text->stopped_by) != options_.stops.end();
        json.value(cut_short(text->reason) ? "max_tokens"
                   : called                ? "tool_use"
                   : asked                 ? "stop_sequence"
                                           : "end_turn");
        json.key("stop_sequence");
        asked && !called ? json.value(text->stopped_by) : json.null();
    }

    std::string message(std::string_view content, const ChoiceText* text, bool called,
                        std::int64_t made) const {
        JsonWriter json;
        json.begin_object().member("id", options_.id).member("type", "message");
        json.member("role", "assistant").member("model", options_.model);
        json.key("content").begin_array();
        if (!content.empty()) json.raw(content);
        json.end_array();
        add_reason(json, text, called);
        json.member("system_fingerprint", options_.fingerprint).key("usage").begin_object();
        json.member("input_tokens", options_.prompt_tokens).member("output_tokens", made);
        return json.end_object().end_object().take();
    }

    FormatOptions options_;
    // For a stream.
    std::optional<CallReader> reader_;
    Block open_ = Block::none;
    int blocks_ = 0;  // closed blocks
    int calls_ = 0;
};

}  // namespace

std::unique_ptr<Format> messages_format(FormatOptions options) {
    return std::make_unique<MessagesFormat>(std::move(options));
}

}  // namespace mr::serve
