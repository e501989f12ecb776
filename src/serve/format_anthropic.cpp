// Messages, as Anthropic's clients read them: one choice, named events.
#include <algorithm>
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
        json.raw(message("", nullptr, 0)).end_object();
        return event_text(json.text(), "message_start") +
               event_text(R"({"type":"content_block_start","index":0,)"
                          R"("content_block":{"type":"text","text":""}})",
                          "content_block_start");
    }

    std::string piece(int, const ChoiceText& text) override {
        JsonWriter json;
        json.begin_object().member("type", "content_block_delta").member("index", 0);
        json.key("delta").begin_object().member("type", "text_delta").member("text", text.text);
        json.end_object().end_object();
        return event_text(json.text(), "content_block_delta");
    }

    std::string end(int, const ChoiceText& text) override {
        JsonWriter json;
        json.begin_object().member("type", "message_delta").key("delta").begin_object();
        add_reason(json, &text);
        json.end_object().key("usage").begin_object().member("output_tokens", text.drawn);
        json.end_object().end_object();
        return event_text(R"({"type":"content_block_stop","index":0})", "content_block_stop") +
               event_text(json.text(), "message_delta");
    }

    std::string last(const Usage&) override {
        return event_text(R"({"type":"message_stop"})", "message_stop");
    }
    std::string failed(const Failure& failure) override {
        return event_text(failure_json(failure, true), "error");
    }
    std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) override {
        JsonWriter content;
        content.begin_object().member("type", "text").member("text", choices[0].text).end_object();
        return message(content.text(), &choices[0], usage.completion);
    }

  private:
    void add_reason(JsonWriter& json, const ChoiceText* text) const {
        json.key("stop_reason");
        if (!text) {
            json.null().key("stop_sequence").null();
            return;
        }
        // The format of the conversation has stop strings of its own.
        const bool asked = text->reason == decode::StopReason::stop_string &&
                           std::find(options_.stops.begin(), options_.stops.end(),
                                     text->stopped_by) != options_.stops.end();
        const bool cut = text->reason == decode::StopReason::length ||
                         text->reason == decode::StopReason::context_full;
        json.value(asked ? "stop_sequence" : cut ? "max_tokens" : "end_turn");
        json.key("stop_sequence");
        asked ? json.value(text->stopped_by) : json.null();
    }

    std::string message(std::string_view content, const ChoiceText* text, std::int64_t made) const {
        JsonWriter json;
        json.begin_object().member("id", options_.id).member("type", "message");
        json.member("role", "assistant").member("model", options_.model);
        json.key("content").begin_array();
        if (!content.empty()) json.raw(content);
        json.end_array();
        add_reason(json, text);
        json.member("system_fingerprint", options_.fingerprint).key("usage").begin_object();
        json.member("input_tokens", options_.prompt_tokens).member("output_tokens", made);
        return json.end_object().end_object().take();
    }

    FormatOptions options_;
};

}  // namespace

std::unique_ptr<Format> messages_format(FormatOptions options) {
    return std::make_unique<MessagesFormat>(std::move(options));
}

}  // namespace mr::serve
