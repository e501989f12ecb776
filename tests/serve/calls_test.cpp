// Tool calls from a model's text to the client: parsed wherever the text is cut into pieces, in the
// formats of both APIs.
#include "serve/calls.h"

#include <gtest/gtest.h>

#include <future>
#include <random>

#include "formats/json.h"
#include "patience.h"
#include "serve/answer.h"
#include "serve/grammars.h"
#include "text/grammar/schema.h"

namespace mr::serve {
namespace {

const text::grammar::ToolForm kPlain, kTagged{"<tool_call>", "</tool_call>"};
const std::string kOne = R"({"name": "now", "arguments": {}})";
const std::string kTwo =
    R"([{"name":"a","arguments":{"x":"}\"]{\\","y":[{"z":1}, 2]}}, )" + kOne + "]";

// "text|name(arguments)|name(arguments..." with ".." after what was cut off.
std::string shown(const CalledText& made) {
    std::string out = made.text;
    for (const CalledText::Call& call : made.calls) {
        out += "|" + call.name + "(" + call.arguments + (call.whole ? ")" : "..");
    }
    return out;
}

TEST(CallReader, TextAndCalls) {
    EXPECT_EQ(shown(read_calls(kPlain, "")), "");
    EXPECT_EQ(shown(read_calls(kPlain, "Hello {\"name\": 1}")), "Hello {\"name\": 1}");
    EXPECT_EQ(shown(read_calls(kPlain, " {")), " {");
    for (const char* none : {"text", "{", "[]", "{}", R"({"name":"a"})", R"([{"name":"a"}])",
                             R"({"name":1,"arguments":{}})", R"({"name":"a","arguments":"{}"})"}) {
        EXPECT_EQ(shown(read_calls(kPlain, none)), none);
    }
    EXPECT_EQ(shown(read_calls(kPlain, kOne)), "|now({})");
    // Arguments keep the order of their keys.
    EXPECT_EQ(shown(read_calls(kPlain, R"([{"name":"b","arguments":{"z":[1,{"y":"\n"}],"a":2.5}},)"
                                       R"({"name":"a","arguments":{}}])")),
              R"(|b({"z":[1,{"y":"\n"}],"a":2.5})|a({}))");
    EXPECT_EQ(shown(read_calls(kPlain, kTwo)), R"(|a({"x":"}\"]{\\","y":[{"z":1}, 2]})|now({}))");
    EXPECT_EQ(shown(read_calls(kTagged, "I <look>.<tool_call>\n" + kOne + "\n</tool_call>\n" +
                                            "<tool_call>" + kOne + "</tool_call>")),
              "I <look>.|now({})|now({})");
    EXPECT_EQ(shown(read_calls(kTagged, "<tool_<<tool_cal")), "<tool_<<tool_cal");
    EXPECT_EQ(shown(read_calls(kTagged, "<tool_<tool_call>" + kOne)), "<tool_|now({})");
}

// A text may end anywhere: an incomplete call is text, and nothing is repeated.
TEST(CallReader, CutAnywhere) {
    for (std::size_t end = 0; end < kOne.size(); ++end) {
        const std::string cut = kOne.substr(0, end);
        const CalledText made = read_calls(kPlain, cut);
        const std::size_t begins = kOne.find("{}");
        if (end <= begins) {
            EXPECT_EQ(shown(made), cut);
        } else {
            EXPECT_EQ(shown(made), end == begins + 1 ? "|now({.." : "|now({})") << cut;
        }
        EXPECT_EQ(shown(read_calls(kTagged, "<tool_call>" + cut)),
                  end <= begins ? "<tool_call>" + cut : shown(made));
    }
}

// A later call that is cut off before its arguments is text, too, behind the calls.
TEST(CallReader, NoByteOfALaterCallIsLost) {
    const std::string first = R"({"name":"a","arguments":{}})", list = "[" + first + ",";
    for (std::size_t end = 0; end < kOne.find("{}") + 1; ++end) {
        const std::string cut = kOne.substr(0, end);
        const CalledText made = read_calls(kPlain, list + cut);
        EXPECT_EQ(shown(made), "|a({})") << cut;
        EXPECT_EQ(made.rest, cut);
        EXPECT_EQ(made.called(), cut.empty());
        EXPECT_EQ(
            read_calls(kTagged, "I look.<tool_call>" + first + "</tool_call><tool_call>" + cut)
                .rest,
            cut);
    }
    EXPECT_EQ(read_calls(kPlain, list + kOne + "]").rest, "");
}

// A text in a format is a text, whatever it begins like.
TEST(CallReader, FormattedTexts) {
    const text::grammar::ToolForm tagged{"<tool_call>", "</tool_call>", {"now"}};
    for (const char* text :
         {R"({"name":"a","age":{"x":1}})", R"({"name": "a", "argument": {}})",
          R"({"a":{"name":"b","arguments":{}}})", "[1,{}]", R"([[{"name":"a"}]])",
          R"(["name","arguments",{}])", "3", R"("<tool_call>)", "x<tool_call>{"}) {
        EXPECT_EQ(shown(read_calls(kPlain, text)), text);
        EXPECT_EQ(shown(read_calls(tagged, text)), text);
        EXPECT_FALSE(read_calls(tagged, text).called());
        // As it comes, byte by byte.
        CallReader reader(kPlain);
        std::string out;
        for (const char c : std::string_view(text)) {
            for (const CallPart& part : reader.read({&c, 1})) {
                EXPECT_EQ(part.kind, CallPart::Kind::text);
                out += part.bytes;
            }
        }
        for (const CallPart& part : reader.finish()) out += part.bytes;
        EXPECT_EQ(out, text);
    }
    EXPECT_EQ(shown(read_calls(tagged, "<tool_call>" + kOne + "</tool_call>")), "|now({})");
    EXPECT_EQ(shown(read_calls(tagged, "<tool<tool_call>" + kOne)), "<tool<tool_call>" + kOne);
    const std::string stop = R"({"name":"stop","arguments":{}})";
    EXPECT_EQ(shown(read_calls({.names = {"now"}}, stop)), stop);
    EXPECT_EQ(shown(read_calls({.names = {"now", "stop"}}, stop)), "|stop({})");
    const std::string long_name = R"({"name":")" + std::string(100, 'a') + R"(","arguments":{}})";
    EXPECT_EQ(shown(read_calls(kPlain, long_name)), long_name);
}

class KeptWire final : public Exchange {
  public:
    const HttpRequest& request() const override { return request_; }
    void reply(HttpReply reply) override { out = reply.body; }
    void begin(HttpReply) override {}
    bool write(std::string_view piece) override {
        out += piece;
        return true;
    }
    void end() override { ended = true; }
    void cut() override {}
    bool gone() const override { return false; }

    std::string out;
    bool ended = false;

  private:
    HttpRequest request_;
};

std::string answered(const std::string& text, std::size_t piece, bool anthropic, bool stream,
                     const text::grammar::ToolForm& form, decode::StopReason reason) {
    const auto exchange = std::make_shared<KeptWire>();
    FormatOptions options{.id = "x"};
    options.calls = form;
    Answer answer(exchange, anthropic ? messages_format(options) : chat_format(options), 1, stream,
                  1, 1);
    for (std::size_t at = 0; at < text.size(); at += piece) {
        answer.text(0, std::string_view(text).substr(at, piece));
    }
    decode::Generated made;
    made.reason = reason;
    answer.ended(0, made);
    return exchange->out;
}

std::vector<formats::JsonDocument> events_of(const std::string& wire) {
    std::vector<formats::JsonDocument> out;
    for (std::size_t at = 0; (at = wire.find("data: ", at)) != std::string::npos;) {
        const std::size_t end = wire.find("\n\n", at);
        const std::string data = wire.substr(at + 6, end - at - 6);
        if (data != "[DONE]") out.push_back(formats::JsonDocument::parse(data, "event"));
        at = end;
    }
    return out;
}

// How an OpenAI client reads a stream, and its finish_reason.
std::string openai_stream(const std::string& wire) {
    CalledText made;
    std::string reason;
    for (const auto& document : events_of(wire)) {
        const formats::JsonValue choice = document.root()["choices"][0];
        if (const auto text = choice["delta"].find_set("content")) made.text += text->text();
        for (const formats::JsonValue call : choice["delta"]["tool_calls"]) {
            const auto index = call["index"].get<std::size_t>();
            if (call.contains("id")) {
                EXPECT_EQ(index, made.calls.size());
                EXPECT_EQ(call["id"].text().size(), 9U);
                EXPECT_EQ(call["type"].text(), "function");
                made.calls.push_back({call["function"]["name"].get<std::string>(), {}, true});
            }
            made.calls.at(index).arguments += call["function"]["arguments"].text();
        }
        if (const auto end = choice.find_set("finish_reason")) reason = end->text();
    }
    return shown(made) + " " + reason;
}

std::string anthropic_stream(const std::string& wire) {
    CalledText made;
    std::string reason;
    int open = -1, next = 0;
    for (const auto& document : events_of(wire)) {
        const formats::JsonValue event = document.root();
        const formats::JsonValue type = event["type"];
        if (type == "content_block_start") {
            EXPECT_EQ(std::exchange(open, next++), -1);
            EXPECT_EQ(event["index"].get<int>(), open);
            const formats::JsonValue block = event["content_block"];
            if (block["type"] == "tool_use") {
                EXPECT_EQ(block["id"].text().size(), 9U);
                EXPECT_TRUE(block["input"].is_object() && block["input"].empty());
                made.calls.push_back({block["name"].get<std::string>(), {}, true});
            }
        } else if (type == "content_block_delta") {
            EXPECT_EQ(event["index"].get<int>(), open);
            const formats::JsonValue delta = event["delta"];
            if (delta["type"] == "text_delta") made.text += delta["text"].text();
            if (delta["type"] == "input_json_delta") {
                made.calls.back().arguments += delta["partial_json"].text();
            }
        } else if (type == "content_block_stop") {
            EXPECT_EQ(event["index"].get<int>(), std::exchange(open, -1));
        } else if (type == "message_delta") {
            EXPECT_EQ(open, -1);
            reason = event["delta"]["stop_reason"].text();
        }
    }
    return shown(made) + " " + reason;
}

TEST(Calls, StreamsHaveTheSameWhereverTheyAreCut) {
    const std::string tagged = "I look.\n<tool_call>\n" + kOne + "\n</tool_call>";
    const struct {
        std::string text;
        const text::grammar::ToolForm& form;
        std::string openai, anthropic;
    } cases[] = {
        {"Hello", kPlain, "Hello stop", "Hello end_turn"},
        {kOne, kPlain, "|now({}) tool_calls", "|now({}) tool_use"},
        {kTwo, kPlain, R"(|a({"x":"}\"]{\\","y":[{"z":1}, 2]})|now({}) tool_calls)",
         R"(|a({"x":"}\"]{\\","y":[{"z":1}, 2]})|now({}) tool_use)"},
        {tagged, kTagged, "I look.\n|now({}) tool_calls", "I look.\n|now({}) tool_use"},
        {R"([{"name":"a","arguments":{}},{"name":"b","argu)", kPlain,
         R"({"name":"b","argu|a({}) stop)", R"({"name":"b","argu|a({}) end_turn)"},
        {"a <tool", kTagged, "a <tool stop", "a <tool end_turn"},
        {"", kPlain, " stop", " end_turn"},
    };
    for (const auto& c : cases) {
        for (const std::size_t piece : {1, 2, 3, 7, 1000}) {
            const auto wire = [&](bool anthropic) {
                return answered(c.text, piece, anthropic, true, c.form,
                                decode::StopReason::end_of_text);
            };
            EXPECT_EQ(openai_stream(wire(false)), c.openai) << piece;
            EXPECT_EQ(anthropic_stream(wire(true)), c.anthropic) << piece;
        }
    }
}

// A text cut off by max_tokens at any place says so in a stream and in a whole answer.
TEST(Calls, CutTextsSayLengthInStreamsAndWholeAnswers) {
    for (std::size_t size = 1; size < kTwo.size(); ++size) {
        const std::string text = kTwo.substr(0, size);
        const auto reason = decode::StopReason::length;
        const std::string stream = openai_stream(answered(text, 3, false, true, kPlain, reason));
        EXPECT_TRUE(stream.ends_with(" length")) << text;
        EXPECT_TRUE(anthropic_stream(answered(text, 3, true, true, kPlain, reason))
                        .ends_with(" max_tokens"));
        const auto whole = formats::JsonDocument::parse(
            answered(text, 1000, false, false, kPlain, reason), "answer");
        EXPECT_EQ(whole.root()["choices"][0]["finish_reason"].text(), "length") << text;
        CallReader reader(kPlain);
        reader.read(text);
        EXPECT_EQ(read_calls(kPlain, text).called(), reader.called()) << text;
    }
}

TEST(Calls, WholeAnswers) {
    const auto whole = [](const std::string& text, bool anthropic, decode::StopReason reason) {
        return formats::JsonDocument::parse(answered(text, 1000, anthropic, false, kPlain, reason),
                                            "answer");
    };
    const auto end = decode::StopReason::end_of_text, length = decode::StopReason::length;
    const auto chat = whole(kTwo, false, end);
    const formats::JsonValue choice = chat.root()["choices"][0];
    EXPECT_EQ(choice["finish_reason"].text(), "tool_calls");
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 2U);
    const formats::JsonValue first = choice["message"]["tool_calls"][0];
    EXPECT_EQ(first["function"]["arguments"].text(), R"({"x":"}\"]{\\","y":[{"z":1}, 2]})");
    EXPECT_NE(first["id"].text(), choice["message"]["tool_calls"][1]["id"].text());

    const auto message = whole(kTwo, true, end);
    EXPECT_EQ(message.root()["stop_reason"].text(), "tool_use");
    ASSERT_EQ(message.root()["content"].size(), 2U);
    EXPECT_EQ(message.root()["content"][0]["input"]["x"].text(), "}\"]{\\");

    // What is left of a later call stands behind the first one.
    const auto later = whole(R"([{"name":"a","arguments":{}},{"name":"b","argu)", true, length);
    ASSERT_EQ(later.root()["content"].size(), 2U);
    EXPECT_EQ(later.root()["content"][0]["name"].text(), "a");
    EXPECT_EQ(later.root()["content"][1]["text"].text(), R"({"name":"b","argu)");
    const auto openai = whole(R"([{"name":"a","arguments":{}},{"name":"b","argu)", false, length);
    EXPECT_EQ(openai.root()["choices"][0]["message"]["content"].text(), R"({"name":"b","argu)");
    EXPECT_EQ(openai.root()["choices"][0]["message"]["tool_calls"].size(), 1U);

    // A call that was cut off must not be made.
    const std::string cut = R"({"name":"a","arguments":{"x":"y)";
    const auto half = whole(cut, false, length);
    EXPECT_EQ(half.root()["choices"][0]["finish_reason"].text(), "length");
    const auto block = whole(cut, true, length);
    EXPECT_EQ(block.root()["stop_reason"].text(), "max_tokens");
    EXPECT_EQ(block.root()["content"][0]["type"].text(), "text");
    EXPECT_NE(block.root()["content"][0]["text"].text().find(R"({"x":"y)"), std::string::npos);
}

const char* const kTwoTools = R"([
    {"type":"function","function":{"name":"walk","parameters":{"type":"object","required":["to"],
        "properties":{"to":{"enum":["}{\"","hill"]},"by":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"stay"}}])";

// A text of tokens drawn at random from the allowed ones.
std::string drawn(ops::TokenFilter& filter, std::mt19937& random, int most) {
    std::string out;
    for (int i = 0; i < most && !filter.finished(); ++i) {
        const auto mask = filter.mask();
        std::vector<std::int32_t> allowed;
        for (std::int32_t id = 0; id < 256; ++id) {
            if (mask[static_cast<std::size_t>(id) / 32] >> id % 32 & 1) allowed.push_back(id);
        }
        const std::int32_t id = allowed.at(random() % allowed.size());
        filter.accept(id);
        out += static_cast<char>(id);
    }
    return out;
}

// Whatever a model draws under the grammar, the reader finds calls of these tools in it.
TEST(Grammars, CallsAreReadAsTheyWereBound) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    const auto document = formats::JsonDocument::parse(kTwoTools, "tools");
    const auto tools = text::grammar::read_tools(document.root());
    std::mt19937 random(1);
    for (const text::grammar::ToolForm& form : {kPlain, kTagged}) {
        for (const bool several : {false, true}) {
            const auto make = grammars.filter(form.open + (several ? "+" : ""), [&] {
                return network_of_tools(tools, {.required = true, .several = several}, form);
            });
            for (int i = 0; i < 50; ++i) {
                const std::string text = drawn(*make(), random, 4000);
                const CalledText made = read_calls(form, text);
                ASSERT_TRUE(made.called()) << text;
                EXPECT_EQ(made.text, "") << text;
                EXPECT_TRUE(several || made.calls.size() == 1) << text;
                for (const CalledText::Call& call : made.calls) {
                    const auto arguments = formats::JsonDocument::parse(call.arguments, text);
                    EXPECT_EQ(arguments.root().contains("to"), call.name == "walk") << text;
                }
            }
        }
    }
    EXPECT_EQ(grammars.kept(), 4U);
}

// Beside a format: what is no call fits the format, as the reader takes it apart.
TEST(Grammars, FreeTextsBesideToolsFitTheFormat) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    const auto document = formats::JsonDocument::parse(kTwoTools, "tools");
    const auto tools = text::grammar::read_tools(document.root());
    const auto wanted = formats::JsonDocument::parse(
        R"({"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties":
        {"name": {"type": "string", "maxLength": 9}, "on": {"type": "boolean"}},
        "required": ["on"]}}})",
        "format");
    const auto format = text::grammar::read_response_format(wanted.root());
    const auto alone = text::grammar::network_of_format(format);
    std::mt19937 random(1);
    for (text::grammar::ToolForm form : {kPlain, kTagged}) {
        for (const auto& tool : tools) form.names.push_back(tool.name);
        const auto make = grammars.filter(
            "beside" + form.open, [&] { return network_of_tools(tools, {}, form, format); });
        int texts = 0, calls = 0;
        for (int i = 0; i < 200; ++i) {
            const std::string text = drawn(*make(), random, 4000);
            const CalledText made = read_calls(form, text);
            if (made.called()) {
                ++calls;
                EXPECT_EQ(made.text, "") << text;
            } else {
                ++texts;
                EXPECT_TRUE(matches(alone, made.text)) << text;
                EXPECT_EQ(made.text, text);
            }
        }
        EXPECT_GT(texts, 10);
        EXPECT_GT(calls, 10);
    }
}

TEST(Grammars, AGrammarIsKnownOnceItIsMade) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    EXPECT_FALSE(grammars.known("any"));
    grammars.filter("any", [] { return text::grammar::network_of_any_object(); });
    EXPECT_TRUE(grammars.known("any"));
    EXPECT_FALSE(grammars.known("other"));
}

// The thread that compiles a large schema keeps no other request from a grammar that is there.
TEST(Grammars, AGrammarIsKnownWhileAnotherIsMade) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    const auto any = [] { return text::grammar::network_of_any_object(); };
    grammars.filter("any", any);
    std::future<bool> known;
    grammars.filter("large", [&] {
        known = std::async(std::launch::async, [&] { return grammars.known("any").has_value(); });
        EXPECT_EQ(known.wait_for(test::kHang), std::future_status::ready);
        return any();
    });
    EXPECT_TRUE(known.get());
}

TEST(Grammars, BannedTokensComeWhereNothingElseCan) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    const auto document = formats::JsonDocument::parse(R"({"enum":["ab","ac","b"]})", "schema");
    const auto make = grammars.filter(
        "schema", [&] { return text::grammar::network_of_schema(document.root(), "schema"); },
        {'"', 'a'});
    std::mt19937 random(1);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(drawn(*make(), random, 100), "\"b\"");
}

TEST(Grammars, AreMadeOnceAndBounded) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    Grammars grammars(*tokenizer, 256);
    int made = 0;
    const auto ask = [&](const std::string& key) {
        return grammars.filter(key, [&] {
            ++made;
            return text::grammar::network_of_any_object();
        });
    };
    for (int i = 0; i < 3; ++i) ask("same");
    EXPECT_EQ(made, 1);
    for (int i = 0; i < 40; ++i) ask(std::to_string(i));
    EXPECT_EQ(made, 41);
    EXPECT_EQ(grammars.kept(), Grammars::kMost);
    const auto wrong = []() -> text::grammar::Network { throw Error::input({.problem = "no"}); };
    EXPECT_THROW(grammars.filter("wrong", wrong), Error);
    EXPECT_NO_THROW(ask("wrong"));
}

// Waiting requests hold their grammars: equal ones are shared, and all have a limit in bytes.
TEST(Grammars, OfRequestsThatWaitAreSharedAndBounded) {
    const auto tokenizer = text::Tokenizer::bytes(256);
    const auto one = std::make_shared<text::grammar::Vocabulary>(*tokenizer, 256);
    const std::size_t each =
        text::grammar::Grammar(text::grammar::network_of_any_object(), one).memory();
    EXPECT_GT(each, 10000U);
    const std::size_t most = Grammars::kMost + 5;
    Grammars grammars(*tokenizer, 256, {}, most * each + each / 2);
    int made = 0;
    const auto ask = [&](const std::string& key) {
        return grammars.filter(key, [&] {
            ++made;
            return text::grammar::network_of_any_object();
        });
    };
    std::vector<Grammars::MakeFilter> waiting;
    for (std::size_t i = 0; i < most; ++i) waiting.push_back(ask(std::to_string(i)));
    EXPECT_EQ(made, static_cast<int>(most));
    waiting.push_back(ask("0"));  // no longer in the cache, but still held
    EXPECT_EQ(made, static_cast<int>(most));
    try {
        waiting.push_back(ask("one more"));
        FAIL() << "there was room";
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, 503);
        EXPECT_GT(failure.retry_after_ms, 0);
    }
    EXPECT_NO_THROW(ask("1"));
    waiting.clear();
    EXPECT_NO_THROW(ask("one more"));
    // Grammars held only by the cache are evicted first.
    Grammars small(*tokenizer, 256, {}, each + each / 2);
    for (const char* key : {"a", "b", "c"}) {
        EXPECT_NO_THROW(small.filter(key, text::grammar::network_of_any_object)) << key;
    }
}

}  // namespace
}  // namespace mr::serve
