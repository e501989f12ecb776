// Keyword by keyword: which texts a schema allows.
#include <optional>
#include <tuple>

#include "grammar_cases.h"
#include "text/grammar/response_format.h"

namespace mr::text::grammar {
namespace {

TEST(GrammarSchema, Types) {
    expect_texts(R"({"type": "null"})", {"null"}, {"", "nul", "nulll", "true", " null", "null "});
    expect_texts(R"({"type": "boolean"})", {"true", "false"}, {"null", "True", "0"});
    expect_texts(R"({"type": ["string", "null"]})", {"null", "\"a\""}, {"1", "{}"});
    expect_texts(R"({"type": "string", "nullable": true})", {"null", "\"\""}, {"false"});
    expect_texts("true", {"1", "[]", "{\"a\":[null,{\"b\":\"c\"}]}", "-1.5e+10"}, {"", "[", "01"});
    expect_texts("{}", {"1", "\"x\"", "[[[]]]", "{\"a\": 1, \"b\": [1, 2]}"}, {"{a:1}", "[1,]"});
    expect_refused(R"({"type": "float"})", "schema.type", "is not a type");
    expect_refused(R"({"type": []})", "schema.type", "empty");
    expect_refused("false", "schema", "no value");
}

TEST(GrammarSchema, Strings) {
    expect_texts(R"({"type": "string"})",
                 {"\"\"", "\"a b\"", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"",
                  R"("\" \\ \/ \b\f\n\r\t \u00e9 \uD83D\uDE00")", "\"\x7F\""},
                 {"\"", "\"\n\"", "\"\\x\"", R"("\u12")", R"("\ud83d")", R"("\ude00")",
                  R"("\ud83dx")", R"("\ud83d\u0041")", "\"\xC3\"", "\"\xC0\x80\"",
                  "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xFF\"", "'a'"});
    expect_texts(R"({"type": "string", "minLength": 2, "maxLength": 3})",
                 {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xC3\xA9\"", R"("\n\uD83D\uDE00\u0041")"},
                 {"\"\"", "\"a\"", "\"abcd\"", R"("\n")"});
    expect_texts(R"({"minLength": 1})", {"\"a\""}, {"\"\"", "1"});
    expect_texts(R"({"type": "string", "maxLength": 0})", {"\"\""}, {"\"a\""});
    expect_texts(R"({"type": "string", "maxLength": 100000000000})", {"\"ab\""}, {"\"ab"});
    expect_refused(R"({"type": "string", "minLength": 3, "maxLength": 2})", "schema", "no value");
    expect_refused(R"({"type": "string", "minLength": -1})", "schema.minLength",
                   "must be an integer");
    expect_refused(R"({"type": "string", "maxLength": 1.5})", "schema.maxLength",
                   "must be an integer");
}

TEST(GrammarSchema, Formats) {
    expect_texts(R"({"type": "string", "format": "date"})", {"\"2024-02-29\"", "\"1999-12-31\""},
                 {"\"2024-02-30\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""});
    expect_texts(R"({"type": "string", "format": "time"})",
                 {"\"23:59:59Z\"", "\"00:00:00.123+02:00\""}, {"\"24:00:00Z\"", "\"12:00:00\""});
    expect_texts(R"({"type": "string", "format": "date-time"})",
                 {"\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.5-11:30\""},
                 {"\"2024-02-29 23:59:59Z\"", "\"2024-02-29\""});
    expect_texts(R"({"type": "string", "format": "uuid"})",
                 {"\"123e4567-e89b-12d3-a456-426614174000\""},
                 {"\"123e4567e89b12d3a456426614174000\"", "\"\""});
    expect_texts(R"({"type": "string", "format": "ipv4"})", {"\"0.10.200.255\""},
                 {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""});
    expect_texts(R"({"type": "string", "format": "hostname"})", {"\"a\"", "\"a-b.example.org\""},
                 {"\"-a\"", "\"a..b\"", "\"a-.b\""});
    expect_texts(R"({"type": "string", "format": "email"})", {"\"a.b+c@example.org\""},
                 {"\"a@b\"", "\"@b.c\"", "\"a b@c.de\"", "\"a..b@c.de\""});
    expect_texts(R"({"type": "string", "format": "uri"})", {"\"https://example.org/a?b=c#d\""},
                 {"\"no scheme\"", "\"http://a b\""});
    expect_texts(R"({"type": "string", "format": "ipv6"})",
                 {"\"::\"", "\"::1\"", "\"1::\"", "\"2001:db8::8a2e:370:7334\"", "\"fe80::1:2\"",
                  "\"1:2:3:4:5:6:7:8\"", "\"1:2:3:4:5:6:7::\"", "\"::2:3:4:5:6:7:8\"",
                  "\"1::3:4:5:6:7:8\"", "\"1:2:3:4:5:6::8\"", "\"::ffff:192.0.2.1\""},
                 {"\"\"", "\":\"", "\"1\"", "\":::\"", "\"1:2:3:4:5:6:7\"", "\"1::2::3\"",
                  "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\"", "\"g::\"", "\"1:2:3:4:5:6:7:8::\"",
                  "\"::1.2.3.256\"", "\"1:2:3:4::5:6:7:8\""});
    expect_texts(R"({"type": "string", "format": "duration"})",
                 {"\"P3Y6M4D\"", "\"P1W\"", "\"PT36H\"", "\"P1DT12H30M5S\"", "\"PT0S\""},
                 {"\"P\"", "\"PT\"", "\"P1DT\"", "\"1D\"", "\"P1D2Y\"", "\"P1Y2D\""});
    expect_texts(R"({"type": "string", "format": "uuid4"})",
                 {"\"123e4567-e89b-42d3-a456-426614174000\""},
                 {"\"123e4567-e89b-12d3-a456-426614174000\""});
    expect_texts(R"({"type": "string", "format": "byte"})", {"\"\"", "\"YQ==\"", "\"YWI=\""},
                 {"\"YQ\"", "\"Y===\"", "\"a b=\""});
    expect_texts(R"({"type": "string", "format": "json-pointer"})", {"\"\"", "\"/a~1b/0\""},
                 {"\"a\"", "\"/~2\""});
    expect_texts(R"({"type": "string", "format": "password", "minLength": 2})", {"\"a b\""},
                 {"\"a\""});
    expect_refused(R"({"properties": {"x": {"type": "string", "format": "color"}}})",
                   "schema.properties.x.format", "'color' is not supported");
}

TEST(GrammarSchema, Values) {
    expect_texts(R"({"enum": ["a", "ab", "b\"c", 1, -2.5, null, true, [1, {"x": 2}]]})",
                 {"\"a\"", "\"ab\"", R"("b\"c")", "1", "-2.5", "null", "true", R"([1,{"x":2}])"},
                 {"\"abc\"", "2", "false", "a", "[1]", "[1, {\"x\": 2}]"});
    expect_texts(R"({"const": "x"})", {"\"x\""}, {"\"y\"", "\"\""});
    expect_texts(R"({"type": "string", "enum": ["a", 1], "const": "a"})", {"\"a\""}, {"1"});
    expect_texts(R"({"const": null})", {"null"}, {"0"});
    expect_refused(R"({"enum": []})", "schema.enum", "no value");
    expect_refused(R"({"enum": "a"})", "schema.enum", "list");
    expect_refused(R"({"type": "string", "enum": [1, 2]})", "schema", "no value");
    expect_refused(R"({"enum": ["a"], "maxLength": 1})", "schema.maxLength", "beside enum");
}

TEST(GrammarSchema, Arrays) {
    expect_texts(R"({"type": "array", "items": {"type": "integer"}})",
                 {"[]", "[1]", "[1,2]", "[1, 2, 3]"},
                 {"[1,,2]", "[1,]", "[1 ,2]", "[\"a\"]", "[ ]"});
    expect_texts(R"({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3})",
                 {"[true,false]", "[true,true,true]"},
                 {"[]", "[true]", "[true,true,true,true]", "[true,true"});
    expect_texts(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
    expect_texts(R"({"type": "array", "maxItems": 1})", {"[]", "[\"a\"]"}, {"[1,2]"});
    expect_texts(R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}],
                     "items": {"type": "integer"}, "minItems": 1, "maxItems": 4})",
                 {"[\"a\"]", "[\"a\",null]", "[\"a\",null,1,2]"},
                 {"[]", "[1]", "[\"a\",1]", "[\"a\",null,\"b\"]", "[\"a\",null,1,2,3]"});
    expect_texts(R"({"prefixItems": [{"type": "string"}, {"type": "null"}], "items": false})",
                 {"[]", "[\"a\"]", "[\"a\",null]"}, {"[\"a\",null,1]", "{}"});
    expect_texts(R"({"type": "array", "items": {"type": "array", "items": {"const": 1}}})",
                 {"[[1,1],[],[1]]"}, {"[1]", "[[1]", "[[[1]]]"});
    expect_refused(R"({"type": "array", "minItems": 2, "maxItems": 1})", "schema", "no value");
    expect_refused(R"({"type": "array", "minItems": 1, "items": false})", "schema", "no value");
    expect_refused(R"({"type": "array", "items": [{}]})", "schema.items", "prefixItems");
    expect_refused(R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems",
                   "not supported");
}

TEST(GrammarSchema, Objects) {
    const char* schema = R"({"type": "object", "properties": {
        "b": {"type": "integer"}, "a": {"type": "string"}, "c": {"type": "null"}},
        "required": ["b"], "additionalProperties": false})";
    expect_texts(schema,
                 {R"({"b":1})", R"({"b": 1, "a": "x"})", R"({"b":1,"c":null})",
                  R"({"b":1,"a":"","c":null})"},
                 {"{}", R"({"a":"x","b":1})", R"({"b":1,"b":1})", R"({"b":1,})", R"({"b":1,"d":1})",
                  R"({ "b":1})", R"({"b" :1})", R"({"b":  1})", R"({"b":1 })", R"({"b":"1"})"});
    expect_texts(R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}})",
                 {"{}", R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
                 {R"({,"a":1})", R"({"b":2,"a":1})", R"({"c":3})"});
    expect_texts(
        R"({"type": "object", "properties": {"ab": {"const": 1}, "b": {"const": 2}},
                     "required": ["ab", "z"], "additionalProperties": {"type": "boolean"}})",
        {R"({"ab":1,"z":true})", R"({"ab":1,"b":2,"z":false,"a":true,"abc":false})",
         R"({"ab":1,"z":true,"":true,"\n\"":true})", R"({"ab":1,"z":true,"x\u0061":true})"},
        {R"({"ab":1})", R"({"ab":1,"z":true,"ab":true})", R"({"ab":1,"z":true,"a":1})",
         R"({"ab":1,"z":true,"\u0061b":true})", R"({"ab":1,"z":true,"b":true})"});
    expect_texts(R"({"type": "object"})", {"{}", R"({"a":{"b":[]}, "c":1})"}, {"[]", R"({"a"})"});
    expect_texts(R"({"additionalProperties": {"type": "integer"}})",
                 {"{}", R"({"\u0061":1,"b":2})"}, {R"({"a":"b"})"});
    expect_texts(R"({"type": "object", "properties": {}, "additionalProperties": false})", {"{}"},
                 {R"({"a":1})"});
    expect_texts(R"({"type": "object", "properties": {"a": false, "b": {"const": 1}}})",
                 {"{}", R"({"b":1})"}, {R"({"a":1})", R"({"a":1,"b":1})"});
    expect_texts(R"({"type": "object", "properties": {"k\"\u00e9": {"const": 1}}})",
                 {"{\"k\\\"\xC3\xA9\":1}"}, {R"({"k\"\u00e9":1})"});
    expect_refused(R"({"properties": {"a": {}}, "required": ["b"], "additionalProperties": false})",
                   "schema.required", "'b'");
    expect_refused(R"({"type": "object", "properties": {"a": 1}})", "schema.properties.a",
                   "a schema is an object");
    expect_refused(R"({"type": "object", "patternProperties": {}})", "schema.patternProperties",
                   "not supported");
    expect_refused(R"({"type": "object", "required": "a"})", "schema.required", "list");
}

TEST(GrammarSchema, Combinations) {
    expect_texts(R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]})",
                 {"\"a\"", "5", "17"}, {"4", "null"});
    expect_texts(R"({"oneOf": [
        {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "null"}},
         "required": ["k", "x"]},
        {"type": "object", "properties": {"k": {"const": "ab"}, "y": {"type": "null"}},
         "required": ["k", "y"]}]})",
                 {R"({"k":"a","x":null})", R"({"k": "ab", "y": null})"},
                 {R"({"k":"a","y":null})", R"({"k":"ab","x":null})"});
    expect_texts(R"({"allOf": [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
        {"properties": {"b": {"type": "null"}, "a": {"maximum": 4}}, "required": ["b"]}]})",
                 {R"({"a":3,"b":null})", R"({"a":4,"b":null})"},
                 {R"({"a":5,"b":null})", R"({"a":2,"b":null})", R"({"a":3})"});
    // Beside its own keywords.
    expect_texts(R"({"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"],
                     "anyOf": [{"properties": {"t": {"const": "x"}}},
                               {"properties": {"t": {"enum": ["y", "z"]}}}]})",
                 {R"({"t":"x"})", R"({"t":"z"})"}, {R"({"t":"w"})", "{}"});
    expect_texts(R"({"anyOf": [{"type": "string"}, {"minLength": 2}], "type": ["string", "null"]})",
                 {"\"\"", "\"ab\"", "null"}, {"1"});
    expect_refused(R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "schema", "no value");
    expect_refused(R"({"anyOf": []})", "schema.anyOf", "list of schemas");
    expect_refused(R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "schema.allOf.1.pattern",
                   "another one");
    expect_refused(R"({"not": {}})", "schema.not", "not supported");
    expect_refused(R"({"properties": {"a": {"anyOf": [{}, {"if": {}}]}}})",
                   "schema.properties.a.anyOf.1.if", "not supported");
}

TEST(GrammarSchema, References) {
    expect_texts(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array",
                     "items": {"$ref": "#/$defs/b~1c"}}, "b/c": {"const": 7}}})",
                 {"[7,7]", "[]"}, {"7", "[8]"});
    const char* tree = R"({"type": "object", "properties": {"value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"],
        "additionalProperties": false})";
    expect_texts(
        tree,
        {R"({"value":1,"next":null})",
         R"({"value":1,"next":{"value":2,"next":{"value":3,"next":null}}})"},
        {R"({"value":1})", R"({"value":1,"next":{"value":2}})", R"({"value":1,"next":null)"});
    // As deep as texts may nest, and no deeper.
    const auto nested = [](int levels) {
        std::string text;
        for (int i = 0; i < levels; ++i) text += R"({"value":1,"next":)";
        return text + "null" + std::string(static_cast<std::size_t>(levels), '}');
    };
    const Network network = compiled(tree);
    EXPECT_TRUE(matches(network, nested(63)));
    EXPECT_FALSE(matches(network, nested(65)));
    const Network any = compiled("{}");
    EXPECT_TRUE(matches(any, std::string(64, '[') + std::string(64, ']')));
    EXPECT_FALSE(matches(any, std::string(65, '[') + std::string(65, ']')));
    // A reference is part of an address: some characters are %XX.
    const char* defs = R"("$defs": {"a b": {"const": 1}, "c~d": {"const": 2}, "e/f": {"const": 3},
        "g%h": {"const": 4}, "\u00fc": {"const": 5}, "i": {"j%20k": {"const": 6}}, "%7e": true})";
    const std::pair<const char*, const char*> refs[] = {
        {"#/$defs/a%20b", "1"},     {"#/%24defs/a b", "1"},  {"#/$defs/c~0d", "2"},
        {"#/$defs/e~1f", "3"},      {"#/$defs/e%7E1f", "3"}, {"#/$defs/g%25h", "4"},
        {"#/$defs/g%h", "4"},       {"#/$defs/%c3%bc", "5"}, {"#/$defs/\xC3\xBC", "5"},
        {"#/$defs/i/j%2520k", "6"}, {"#/$defs/i/j%20k", "6"}};
    for (const auto& [ref, value] : refs) {
        const std::string schema = R"({"$ref": ")" + std::string(ref) + "\", " + defs + "}";
        expect_texts(schema, {value}, {"7"});
    }
    expect_refused(R"({"$ref": "#/$defs/a%2Fb", "$defs": {"a": {"c": {}}}})", "schema.$ref",
                   "points to nothing");
    expect_refused(R"({"$ref": "#/$defs/x"})", "schema.$ref", "points to nothing");
    expect_refused(R"({"$ref": "http://example.org/x"})", "schema.$ref", "not inside");
    expect_refused(R"({"$ref": "#"})", "schema", "refers to itself");
    expect_refused(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "schema", "refers to itself");
    expect_refused(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
                   "schema", "no value");
}

TEST(GrammarSchema, AnnotationsChangeNothing) {
    expect_texts(R"({"$schema": "x", "$id": "y", "title": "t", "description": "d", "default": 3,
                     "examples": [1], "deprecated": true, "type": "null", "uniqueItems": false,
                     "x-order": 1, "x-": {"type": 7}, "$anchor": "z"})",
                 {"null"}, {"3"});
    expect_texts(R"({"properties": {"a": {"x-hint": "any"}}, "required": ["a"]})", {R"({"a":[1]})"},
                 {"{}"});
    expect_refused(R"({"type": "null", "xorder": 1})", "schema.xorder", "not supported");
}

using ReadFormat = TextFormat (*)(formats::JsonValue, const std::string&);

// The texts that a format allows, by matches().
std::optional<Network> network_of(ReadFormat read, std::string_view text) {
    const auto document = json(text);
    const TextFormat format = read(document.root(), "f");
    return format ? std::optional(network_of_format(format)) : std::nullopt;
}

// The path and the words of the error that a format gives.
std::string format_error(ReadFormat read, std::string_view text) {
    try {
        network_of(read, text);
    } catch (const Error& error) {
        return error.info().field + " " + error.info().problem;
    }
    return "none";
}

TEST(GrammarSchema, ResponseFormats) {
    const auto network = [](std::string_view text) {
        return network_of(read_response_format, text);
    };
    EXPECT_FALSE(network("null"));
    EXPECT_FALSE(network(R"({"type": "text"})"));
    EXPECT_TRUE(matches(*network(R"({"type": "json_object"})"), R"({"a": [1]})"));
    EXPECT_FALSE(matches(*network(R"({"type": "json_object"})"), "[]"));
    const auto schema =
        network(R"({"type": "json_schema", "json_schema": {"name": "n", "strict": true,
        "schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}}})");
    EXPECT_TRUE(matches(*schema, R"({"a": 1})"));
    EXPECT_FALSE(matches(*schema, "{}"));
    const auto own = network(R"({"type": "json_object", "schema": {"type": "null"}})");
    EXPECT_TRUE(matches(*own, "null"));
    EXPECT_FALSE(matches(*own, "{}"));
    const std::pair<const char*, const char*> wrong[] = {
        {"1", "f is not an object"},
        {"{}", "f.type null is not a supported format"},
        {R"({"type": "xml"})", "f.type "},
        {R"({"type": "json_schema"})", "f.json_schema "},
        {R"({"type": "json_schema", "json_schema": {}})", "f.json_schema.schema "},
        {R"({"type": "json_object", "schema": 1})", "f.schema "},
        {R"({"type": "json_schema", "json_schema": {"schema": {"properties": {"x":
                        {"pattern": "("}}}}})",
         "f.json_schema.schema.properties.x.pattern "}};
    for (const auto& [text, error] : wrong) {
        EXPECT_TRUE(format_error(read_response_format, text).starts_with(error))
            << format_error(read_response_format, text);
    }
}

void expect_format(ReadFormat read, std::string_view format,
                   std::initializer_list<std::string_view> good,
                   std::initializer_list<std::string_view> bad) {
    SCOPED_TRACE(format);
    const auto network = network_of(read, format);
    ASSERT_TRUE(network);
    for (const std::string_view text : good) EXPECT_TRUE(matches(*network, text)) << text;
    for (const std::string_view text : bad) EXPECT_FALSE(matches(*network, text)) << text;
}

// The fields of vLLM: schemas, patterns of whole texts, choices; no quotes around them.
TEST(GrammarSchema, FormatsOfTexts) {
    expect_format(read_schema_format, R"({"type": "integer", "maximum": 3})", {"3"}, {"4"});
    expect_format(read_schema_format, R"("{\"type\": \"integer\", \"maximum\": 3}")", {"3"}, {"4"});
    expect_format(read_pattern_format, R"("[a-c]+|x{2}\"\\\\?")", {"abc", "xx\"", "xx\"\\"},
                  {"", "abcd", "xabc", "xx", "\"abc\""});
    expect_format(read_pattern_format, R"("^\\d+(\\.\\d+)?$")", {"1", "12.50"}, {"1.", "a1"});
    expect_format(read_pattern_format, R"("(\u00e9|\u20ac|\\u{1F600})\\s.*")",
                  {"\xC3\xA9 ", "\xE2\x82\xAC\n\tab", "\xF0\x9F\x98\x80 \xC3\xA9"},
                  {"\xC3\xA9", "\xC3 a", "\xE2\x82\xAC a\nb", "\xE2\x82\xAC \x01"});
    expect_format(read_pattern_format, R"("")", {""}, {"a"});
    expect_format(read_choice_format, R"(["yes", "no", "\"no\"\n", "yes"])",
                  {"yes", "no", "\"no\"\n"}, {"", "y", "yes.", "nope"});
    expect_format(read_choice_format, R"(["", "a"])", {"", "a"}, {"b"});
    expect_format(read_structured_outputs, R"({"json": {"const": 1}, "regex": null})", {"1"},
                  {"2"});
    expect_format(read_structured_outputs, R"({"regex": "a+", "disable_fallback": true})", {"aa"},
                  {"b"});
    expect_format(read_structured_outputs, R"({"choice": ["a"]})", {"a"}, {"b"});
    expect_format(read_structured_outputs, R"({"json_object": true})", {"{}"}, {"[]"});
    EXPECT_FALSE(network_of(read_structured_outputs, "{}"));
    EXPECT_FALSE(network_of(read_structured_outputs, R"({"json_object": false})"));
}

TEST(GrammarSchema, FormatsOfTextsThatAreRefused) {
    const std::tuple<ReadFormat, const char*, const char*> wrong[] = {
        {read_schema_format, "1", "f is not a schema"},
        {read_schema_format, R"("{")", "f "},
        {read_schema_format, R"({"not": {}})", "f.not "},
        {read_pattern_format, "1", "f is not a text"},
        {read_pattern_format, R"x("(?=a)")x", "f "},
        {read_pattern_format, R"("a^b")", "f "},
        {read_choice_format, R"("a")", "f is not a list of texts"},
        {read_choice_format, "[]", "f is not a list of texts"},
        {read_choice_format, R"(["a", 1])", "f has what is not a text"},
        {read_choice_format, R"(["\u0001"])", "f has a control character"},
        {read_structured_outputs, "1", "f is not an object"},
        {read_structured_outputs, R"({"grammar": "root ::= x"})", "f.grammar is not supported"},
        {read_structured_outputs, R"({"structural_tag": "x"})",
         "f.structural_tag is not supported"},
        {read_structured_outputs, R"({"regex": "a", "whitespace_pattern": "b"})",
         "f.whitespace_pattern is not supported"},
        {read_structured_outputs, R"({"regex": "a", "choice": ["b"]})",
         "f.choice stands beside another format"}};
    for (const auto& [read, text, error] : wrong) {
        EXPECT_TRUE(format_error(read, text).starts_with(error)) << format_error(read, text);
    }
}

}  // namespace
}  // namespace mr::text::grammar
