// Tool calls: their grammar, and their way back from text.
#include "grammar_cases.h"
#include "text/grammar/tools.h"

namespace mr::text::grammar {
namespace {

constexpr std::string_view kTools = R"([
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/n"}},
         "required": ["city"], "additionalProperties": false, "$defs": {"n": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "weather_map", "parameters": {}}},
    {"type": "function", "function": {"name": "now"}}])";

Network network_for(std::string_view choice, bool several = true) {
    const auto document = json(kTools), chosen = json(choice);
    const auto tools = read_tools(document.root());
    return network_of_tools(tools, read_tool_choice(chosen.root(), tools, several).value());
}

constexpr std::string_view kWeather =
    R"({"name": "weather", "arguments": {"city": "Oslo", "days": 3}})";

TEST(GrammarTools, RequiredCalls) {
    const Network network = network_for(R"("required")");
    for (const std::string_view text :
         {kWeather, std::string_view(R"({"name":"weather","arguments":{"city":""}})"),
          std::string_view(R"({"name":"weather_map","arguments":{"anything":[1]}})"),
          std::string_view(R"({"name":"now","arguments":{}})"),
          std::string_view(R"([{"name":"now","arguments":{}}, {"name":"now","arguments":{}}])")}) {
        EXPECT_TRUE(matches(network, text)) << text;
    }
    for (const std::string_view text :
         {"", "Hello", R"({"name":"weather","arguments":{}})", R"({"name":"wea","arguments":{}})",
          R"({"name":"now","arguments":{"a":1}})", R"({"name":"now"})", "[]",
          R"({"name":"weather_map","arguments":[]})"}) {
        EXPECT_FALSE(matches(network, text)) << text;
    }
    EXPECT_FALSE(
        matches(network_for(R"("required")", false), R"([{"name":"now","arguments":{}}])"));
}

TEST(GrammarTools, OneThatIsNamed) {
    const Network network = network_for(R"({"type": "function", "function": {"name": "weather"}})");
    EXPECT_TRUE(matches(network, kWeather));
    EXPECT_FALSE(matches(network, R"({"name":"now","arguments":{}})"));
    EXPECT_FALSE(matches(network, "[" + std::string(kWeather) + "]"));
}

TEST(GrammarTools, TextOrCalls) {
    const Network network = network_for(R"("auto")");
    for (const std::string_view text :
         {std::string_view(""), kWeather, std::string_view("Hello {you}\n\n[1]"),
          std::string_view("\xE2\x82\xAC 3"), std::string_view("\n{\"name\"")}) {
        EXPECT_TRUE(matches(network, text)) << text;
    }
    for (const std::string_view text :
         {"{", "{}", "[1]", R"({"name":"x","arguments":{}})", "a\x01", "\xC3", "a\xFF"}) {
        EXPECT_FALSE(matches(network, text)) << text;
    }
}

TEST(GrammarTools, CallsBetweenTags) {
    const auto document = json(kTools);
    const auto tools = read_tools(document.root());
    const ToolForm form{"<tool_call>", "</tool_call>"};
    const std::string call = "<tool_call>\n" + std::string(kWeather) + "\n</tool_call>";
    const Network free = network_of_tools(tools, {}, form);
    for (const std::string& text :
         {std::string(), call, call + "\n" + call, "I look.\n" + call, std::string("{} [1]"),
          std::string("<tool_cal"), std::string("<<tool \xE2\x82\xAC<"), "<tool_" + call,
          "<<" + call}) {
        EXPECT_TRUE(matches(free, text)) << text;
    }
    for (const std::string& text :
         {std::string("<tool_call>"), call + "text", "a" + call.substr(0, call.size() - 1),
          std::string("a<tool_call>\n{\"name\":\"x\"")}) {
        EXPECT_FALSE(matches(free, text)) << text;
    }
    const Network required = network_of_tools(tools, {.required = true}, form);
    EXPECT_TRUE(matches(required, call + call));
    EXPECT_FALSE(matches(required, "text"));
    EXPECT_FALSE(matches(required, ""));
    const Network one = network_of_tools(tools, {.required = true, .several = false}, form);
    EXPECT_TRUE(matches(one, call));
    EXPECT_FALSE(matches(one, call + "\n" + call));
}

TEST(GrammarTools, Choices) {
    const auto document = json(kTools);
    const auto tools = read_tools(document.root());
    EXPECT_FALSE(read_tool_choice(json(R"("none")").root(), tools, true));
    EXPECT_FALSE(read_tool_choice(formats::JsonValue(), tools, true)->required);
    for (const std::string_view wrong :
         {R"("sometimes")", "1", "{}", R"({"type": "function", "function": {"name": "other"}})"}) {
        EXPECT_THROW(read_tool_choice(json(wrong).root(), tools, true), Error) << wrong;
    }
}

// A format and tools at once: the free text obeys the one, calls obey the others.
TEST(GrammarTools, BesideAFormat) {
    const auto tools_document = json(R"([{"type": "function", "function": {"name": "go",
        "parameters": {"properties": {"to": {"type": "integer"}}, "required": ["to"]}}}])");
    const auto tools = read_tools(tools_document.root());
    const auto network = [&](std::string_view schema, const ToolForm& form,
                             const ToolChoice& choice = {}) {
        const auto document = json(schema);
        return network_of_tools(tools, choice, form, read_response_format(document.root()));
    };
    const std::string schema = R"({"type": "json_schema", "json_schema": {"schema": {"type":
        "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"]}}})";
    const std::string call = R"({"name":"go","arguments":{"to":3}})";
    const ToolForm plain{.names = {"go"}};
    const ToolForm tagged{"<tool_call>", "</tool_call>", {"go"}};
    const Network bare = network(schema, plain);
    for (const std::string& text :
         {call, "[" + call + ", " + call + "]", std::string(R"({"name":"go"})"),
          std::string(R"({"name":"x", "age":3})")}) {
        EXPECT_TRUE(matches(bare, text)) << text;
    }
    for (const char* text : {"", "Hello", R"({"age":3})", R"({"name":"go","arguments":{}})",
                             R"({"name":"x","arguments":{"to":3}})", R"({"name":"x","age":"3"})"}) {
        EXPECT_FALSE(matches(bare, text)) << text;
    }
    const Network marked = network(schema, tagged);
    for (const std::string& text :
         {"<tool_call>" + call + "</tool_call>", std::string(R"({"name":"<tool_call>"})")}) {
        EXPECT_TRUE(matches(marked, text)) << text;
    }
    for (const std::string& text : {std::string("Hello"), std::string(), call,
                                    R"({"name":"x"}<tool_call>)" + call + "</tool_call>",
                                    " <tool_call>" + call + "</tool_call>"}) {
        EXPECT_FALSE(matches(marked, text)) << text;
    }
    // Where a call is required there is no free text.
    EXPECT_FALSE(matches(network(schema, plain, {.required = true}), R"({"name":"x"})"));
    // Any object: none that could be a call.
    const Network any = network(R"({"type": "json_object"})", plain);
    EXPECT_TRUE(matches(any, R"({"name":"go","a":{"arguments":1}})"));
    EXPECT_TRUE(matches(any, call));
    EXPECT_FALSE(matches(any, R"({"name":"go","arguments":{"to":"x"}})"));
    EXPECT_TRUE(matches(network(R"({"type": "json_object"})", tagged), R"({"arguments":{}})"));
    // Formats in which a text may begin as a call.
    const auto refused = [&](std::string_view format, const ToolForm& form) {
        try {
            network(format, form);
        } catch (const Error& error) {
            return error.info().field;
        }
        return std::string("none");
    };
    const auto format = [](std::string_view inside) {
        return R"({"type": "json_schema", "json_schema": {"schema": )" + std::string(inside) + "}}";
    };
    const std::string open = format(R"({"properties": {"name": {"type": "string"}},
        "additionalProperties": true})");
    const std::string list = format(R"({"type": "array", "items": {"type": "object"}})");
    const std::string other =
        format(R"({"properties": {"name": {"enum": ["stop"]}, "arguments": {}}})");
    const std::string text =
        format(R"({"properties": {"name": {}, "arguments": {"type": "string"}}})");
    EXPECT_EQ(refused(open, plain), "response_format.json_schema.schema");
    EXPECT_EQ(refused(list, plain), "response_format.json_schema.schema");
    EXPECT_EQ(refused(other, plain), "none");
    EXPECT_EQ(refused(text, plain), "none");
    EXPECT_EQ(refused(open, tagged), "none");
    EXPECT_EQ(refused(list, tagged), "none");
}

TEST(GrammarTools, BadTools) {
    const auto field = [](std::string_view text) {
        const auto document = json(text);
        try {
            const auto tools = read_tools(document.root());
            network_of_tools(tools, {});
        } catch (const Error& error) {
            return error.info().field;
        }
        return std::string("none");
    };
    const auto one = [](std::string_view function) {
        return R"([{"type": "function", "function": )" + std::string(function) + "}]";
    };
    EXPECT_EQ(field("{}"), "tools");
    EXPECT_EQ(field("[]"), "tools");
    EXPECT_EQ(field("[1]"), "tools.0");
    EXPECT_EQ(field(R"([{"type": "other"}])"), "tools.0.type");
    EXPECT_EQ(field(one("1")), "tools.0.function");
    EXPECT_EQ(field(one(R"({"name": 1})")), "tools.0.function.name");
    EXPECT_EQ(field(one(R"({"name": "a b"})")), "tools");
    EXPECT_EQ(field(one(R"({"name": "a", "parameters": []})")), "tools.0.function.parameters");
    EXPECT_EQ(field(one(R"({"name": "a", "parameters": {"properties": {"x": {"type": "y"}}}})")),
              "tools.0.function.parameters.properties.x.type");
    EXPECT_EQ(field(one(R"({"name": "a", "parameters": {"type": "string"}})")),
              "tools.0.function.parameters");
    EXPECT_EQ(field(R"([{"type": "function", "function": {"name": "a"}},
                        {"type": "function", "function": {"name": "a"}}])"),
              "tools");
}

}  // namespace
}  // namespace mr::text::grammar
