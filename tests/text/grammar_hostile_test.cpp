// Schemas that explode quickly give an error or a grammar.
#include <fmt/format.h>

#include "grammar_cases.h"
#include "patience.h"
#include "sanitized.h"
#include "text/grammar/constraint.h"

namespace mr::text::grammar {
namespace {

class GrammarHostile : public testing::Test {
  protected:
    // Sanitized code is slower.
    ~GrammarHostile() override {
        if (!test::sanitized()) {
            EXPECT_LT(test::cpu_seconds() - start_, 10.0);  // one on a slow core
        }
    }

  private:
    double start_ = test::cpu_seconds();
};

std::string list_of(std::size_t count, const auto& one) {
    std::string out = "[";
    for (std::size_t i = 0; i < count; ++i) {
        if (i > 0) out += ',';
        out += one(i);
    }
    return out + "]";
}

TEST_F(GrammarHostile, Nesting) {
    // The JSON reader refuses it first.
    std::string deep;
    for (int i = 0; i < 10000; ++i) deep += R"({"items":)";
    EXPECT_THROW(json(deep + "{}" + std::string(10000, '}')), Error);
    // As deep as it allows: deeper than values may be, so that inner ones are never written.
    std::string list, required;
    for (int i = 0; i < 150; ++i) list += R"({"type":"array","items":)";
    EXPECT_TRUE(matches(compiled(list + "{}" + std::string(150, '}')), "[[[]]]"));
    for (int i = 0; i < 90; ++i) required += R"({"required":["a"],"properties":{"a":)";
    std::string close;
    for (int i = 0; i < 90; ++i) close += "}}";
    expect_refused(required + "{}" + close, "schema", "levels");
}

TEST_F(GrammarHostile, Enums) {
    const auto value = [](std::size_t i) { return fmt::format("\"value number {:08}\"", i); };
    const std::string largest = list_of(kMostEnumValues, value);
    const Network network = compiled("{\"enum\":" + largest + "}");
    EXPECT_TRUE(matches(network, "\"value number 00000000\""));
    EXPECT_TRUE(matches(network, "\"value number 00009999\""));
    EXPECT_FALSE(matches(network, "\"value number 00010000\""));
    expect_refused("{\"enum\":" + list_of(kMostEnumValues + 1, value) + "}", "schema.enum",
                   "more than");
    const std::string longest = list_of(3, [](std::size_t i) {
        return "\"" + std::string(1 << 20, static_cast<char>('a' + i)) + "\"";
    });
    expect_refused("{\"enum\":" + longest + "}", "schema", "states and edges");
    // Each of many properties is below the limit.
    const auto other = [](std::size_t i) { return fmt::format("\"{:08} is its number\"", i); };
    std::string many = R"({"properties": {)";
    for (int i = 0; i < 60; ++i) {
        many += fmt::format(R"({}"p{}": {{"enum": {}}})", i ? "," : "", i, list_of(3000, other));
    }
    expect_refused(many + "}}", "schema", "states and edges");
}

// Each definition refers twice to the next: 2^45 ways, but 45 rules.
TEST_F(GrammarHostile, ReferencesThatDouble) {
    std::string defs;
    for (int i = 0; i < 45; ++i) {
        defs += fmt::format(R"({}"d{}": {{"type": "object", "properties": {{"a": {{"$ref": )"
                            R"("#/$defs/d{}"}}, "b": {{"$ref": "#/$defs/d{}"}}}}}})",
                            i ? "," : "", i, i + 1, i + 1);
    }
    const std::string fine =
        R"({"$ref": "#/$defs/d0", "$defs": {)" + defs + R"(, "d45": {"type": "null"}}})";
    EXPECT_TRUE(matches(compiled(fine), R"({"a":{"b":{}},"b":{}})"));
    // Without objects between them the references are expanded, until there are too many ways.
    for (const char* word : {"anyOf", "allOf", "oneOf"}) {
        std::string flat;
        for (int i = 0; i < 45; ++i) {
            flat += fmt::format(R"("d{}": {{"{}": [{{"$ref": "#/$defs/d{}"}}, {{"$ref": )"
                                R"("#/$defs/d{}"}}]}},)",
                                i, word, i + 1, i + 1);
        }
        const std::string schema =
            R"({"$ref": "#/$defs/d0", "$defs": {)" + flat + R"("d45": {"type": "null"}}})";
        if (std::string_view(word) == "allOf") {
            EXPECT_TRUE(matches(compiled(schema), "null"));
        } else {
            EXPECT_THROW(compiled(schema), Error) << word;
        }
    }
    // Pairs of schemas joined in every way: more rules than allowed.
    std::string joined;
    for (int i = 0; i < 200; ++i) {
        joined += fmt::format(R"({}{{"additionalProperties": {{"properties": {{"x{}": {{"$ref": )"
                              R"("#"}}}}, "additionalProperties": {{"$ref": "#"}}}}}})",
                              i ? "," : "", i);
    }
    EXPECT_THROW(compiled(R"({"allOf": [)" + joined + "]}"), Error);
}

TEST_F(GrammarHostile, ManyOfEverything) {
    const auto property = [](std::size_t i) { return fmt::format("\"p{}\": {{}}", i); };
    const std::string hundred = list_of(kMostOptional, property), more = list_of(3000, property);
    const auto inside = [](const std::string& list) { return list.substr(1, list.size() - 2); };
    const Network network = compiled(R"({"properties": {)" + inside(hundred) + "}}");
    EXPECT_TRUE(matches(network, R"({"p3":1,"p120":2})"));
    EXPECT_FALSE(matches(network, R"({"p120":1,"p3":2})"));
    expect_refused(R"({"properties": {)" + inside(more) + "}}", "schema", "in a row");
    const std::string names =
        list_of(3000, [](std::size_t i) { return fmt::format("\"p{}\"", i); });
    compiled(R"({"properties": {)" + inside(more) + R"(}, "required": )" + names + "}");
    expect_refused(R"({"anyOf": )" + list_of(500, [](std::size_t) { return "{}"; }) + "}",
                   "schema.anyOf", "more than");
    expect_refused(R"({"prefixItems": )" + list_of(30000, [](std::size_t) { return "{}"; }) + "}",
                   "schema", "more than");
    expect_refused(R"({"properties": {")" + std::string(5000, 'a') + R"(": {}}})",
                   "schema.properties", "bytes");
    compiled(R"({"type": "array", "minItems": 1000000000, "items": {"type": "string",
             "minLength": 1000000000}})");
}

// Work that multiplies: each alternative of each joined schema has thousands of properties.
TEST_F(GrammarHostile, WorkThatMultiplies) {
    std::string properties = "{";
    for (int i = 0; i < 11000; ++i) properties += fmt::format("{}\"p{}\": {{}}", i ? "," : "", i);
    properties += "}";
    const std::string all = list_of(100, [](std::size_t i) {
        return fmt::format(R"({{"required": ["p{}"], "additionalProperties": true}})", i);
    });
    const std::string any =
        list_of(100, [](std::size_t i) { return fmt::format(R"({{"required": ["q{}"]}})", i); });
    expect_refused(
        fmt::format(R"({{"properties": {}, "allOf": {}, "anyOf": {}}})", properties, all, any),
        "schema", "steps to read");
    std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {"d5000": {})";
    for (int i = 0; i < 5000; ++i) {
        chain += fmt::format(R"(, "d{}": {{"$ref": "#/$defs/d{}"}})", i, i + 1);
    }
    expect_refused(chain + "}}", "schema.$defs.d99", "lead to each other");
    const std::string names =
        list_of(100000, [](std::size_t i) { return fmt::format("\"{}\"", i); });
    EXPECT_THROW(compiled(R"({"type": "object", "required": )" + names + "}"), Error);
}

// A grammar in which nearly every byte leads to a new state: walks end, and masks are correct.
TEST_F(GrammarHostile, StatesThatMultiply) {
    const auto words = std::make_shared<const Vocabulary>(*Tokenizer::bytes(256));
    std::string patterns;
    for (int i = 0; i < 8; ++i) {
        patterns += fmt::format(R"({}{{"type": "string", "pattern": "^([a-z]{{{}}})*$"}})",
                                i ? "," : "", 7 + 2 * i);
    }
    const auto grammar =
        std::make_shared<Grammar>(compiled("{\"anyOf\": [" + patterns + "]}"), words);
    Constraint constraint(grammar);
    constraint.accept('"');
    int ends = 0;
    for (int length = 1; length <= 30000; ++length) {
        constraint.accept('a' + length % 26);
        if (length % 500 > 20) continue;
        bool may_end = false;
        for (int i = 0; i < 8; ++i) may_end = may_end || length % (7 + 2 * i) == 0;
        ASSERT_EQ(constraint.allows('"'), may_end) << length;
        ASSERT_TRUE(constraint.allows('x'));
        ends += may_end;
    }
    EXPECT_GT(ends, 100);
}

// Two readings at every level: their number is limited, and the remaining ones are correct.
TEST_F(GrammarHostile, Ambiguity) {
    const std::string schema = R"({"$ref": "#/$defs/a", "$defs": {
        "a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}},
                        {"type": "array", "items": {"$ref": "#/$defs/b"}}, {"type": "integer"}]},
        "b": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/b"}},
                        {"type": "array", "items": {"$ref": "#/$defs/a"}}, {"type": "null"}]}}})";
    const auto words = std::make_shared<const Vocabulary>(*Tokenizer::bytes(256));
    Constraint constraint(std::make_shared<Grammar>(compiled(schema), words));
    std::string text;
    for (int i = 0; i < 200 && !constraint.finished(); ++i) {
        const char choices[] = {'[', '1', ']', 'n', ','};
        for (const char c : choices) {
            if (!constraint.allows(c)) continue;
            constraint.accept(c);
            text += c;
            break;
        }
    }
    EXPECT_GT(text.size(), 60u);
    EXPECT_EQ(text.substr(0, 5), "[[[[[");
}

}  // namespace
}  // namespace mr::text::grammar
