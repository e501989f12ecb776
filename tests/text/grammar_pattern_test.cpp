// Patterns: what they match, what is refused, and that none takes long.
#include "grammar_cases.h"
#include "patience.h"
#include "sanitized.h"

namespace mr::text::grammar {
namespace {

std::string with_pattern(std::string_view pattern, std::string_view more = {}) {
    return "{\"type\": \"string\", \"pattern\": " + formats::json_quoted(pattern) +
           std::string(more) + "}";
}

void expect_strings(std::string_view pattern, std::initializer_list<std::string_view> good,
                    std::initializer_list<std::string_view> bad, std::string_view more = {}) {
    SCOPED_TRACE(pattern);
    const Network network = compiled(with_pattern(pattern, more));
    for (const auto text : good) EXPECT_TRUE(matches(network, formats::json_quoted(text))) << text;
    for (const auto text : bad) EXPECT_FALSE(matches(network, formats::json_quoted(text))) << text;
}

void expect_bad(std::string_view pattern, std::string_view part) {
    expect_refused(with_pattern(pattern), "schema.pattern", part);
}

TEST(GrammarPattern, Syntax) {
    expect_strings("^abc$", {"abc"}, {"", "ab", "abcd", "xabc"});
    expect_strings("abc", {"abc", "xabcx", "ababc", "aabc\n"}, {"", "ab", "acb"});
    expect_strings("^a|b$", {"ax", "a", "xb", "b"}, {"x", "ba", "xa"});
    expect_strings("^(?:a|bc)*d?$", {"", "a", "abca", "bcd"}, {"b", "dd", "ac"});
    expect_strings("^a{2,3}b{2}c{1,}$", {"aabbc", "aaabbccc"},
                   {"abbc", "aaaabbc", "aabb", "aabbbc"});
    expect_strings("^(ab){2}$", {"abab"}, {"ab", "ababab"});
    expect_strings("^[a-cx-]+$", {"a", "abc-x"}, {"d", "", "w"});
    expect_strings("^[^a-c\"]+$", {"d", "\xC3\xA9", "\xF0\x9F\x98\x80\n"}, {"a", "\"", "db"});
    expect_strings(R"(^\d\w\s\D\W\S$)", {"1a b-c", "0_\tx x"}, {"aa b-c", "1a b-c "});
    expect_strings(R"(^\x41\u0042\u{43}\.\-\/\\$)", {"ABC.-/\\"}, {"ABCx-/\\"});
    expect_strings(R"(^[\d.]+$)", {"1.5"}, {"a"});
    expect_strings("^.$", {"a", "\xC3\xA9", "\"", "\\", "\t"}, {"\n", "", "ab"});
    expect_strings("^[\xC3\xA9-\xC3\xBF]\xE2\x82\xAC$", {"\xC3\xAA\xE2\x82\xAC"},
                   {"e\xE2\x82\xAC"});
    expect_strings("^[\\u0080-\\uFFFF]$", {"\xC2\x80", "\xE2\x82\xAC", "\xEF\xBF\xBD"},
                   {"a", "\xF0\x9F\x98\x80"});
    expect_strings(R"(^\uD83D\uDE00$)", {"\xF0\x9F\x98\x80"}, {"\xF0\x9F\x98\x81"});
    expect_strings("^(?<year>[0-9]{4})$", {"2024"}, {"24"});
    expect_strings("", {"", "anything"}, {});
    expect_strings("^$", {""}, {"a"});
    expect_strings("^a+?b*?$", {"ab", "aa"}, {"b"});
    // One spelling: characters with a short escape in JSON are written with it.
    const Network network = compiled(with_pattern("^[\"/\\n\\\\]+$"));
    EXPECT_TRUE(matches(network, R"("\"/\n\\")"));
    EXPECT_FALSE(matches(network, R"("\/")"));
    EXPECT_FALSE(matches(network, R"("\u000a")"));
}

TEST(GrammarPattern, WithLengths) {
    expect_strings("^[a-z]+$", {"ab", "abcd"}, {"a", "abcde", "a1"},
                   R"(, "minLength": 2, "maxLength": 4)");
    expect_strings("^(ab)*$", {"abab", "ababab"}, {"", "ab", "aba"}, R"(, "minLength": 3)");
    expect_strings("x", {"xa", "ax"}, {"x", "aax", "aa"}, R"(, "minLength": 2, "maxLength": 2)");
    expect_refused(with_pattern("^a$", R"(, "minLength": 2)"), "schema", "no value");
}

TEST(GrammarPattern, WhatIsNotSupportedIsSaid) {
    expect_bad("(?=a)b", "only (?: )");
    expect_bad("(?<!a)b", "looking around");
    expect_bad("(a)\\1", "escape");
    expect_bad("\\bword", "escape");
    expect_bad("\\p{L}", "escape");
    expect_bad("(^a)", "^ or $");
    expect_bad("a$b", "^ or $");
    expect_bad("(a", "not closed");
    expect_bad("a)", "closes no group");
    expect_bad("[a", "not closed");
    expect_bad("[b-a]", "wrong order");
    expect_bad("a{2,1}", "wrong order");
    expect_bad("a{x}", "wants a count");
    expect_bad("*a", "nothing before");
    expect_bad("a**", "follows another");
    expect_bad("a\\", "ends with a backslash");
    expect_bad("\\u12", "hexadecimal");
    expect_bad("a{10001}", "over 10000");
    expect_bad(std::string(5000, 'a'), "longer than");
}

TEST(GrammarPattern, HostileOnesEndSoon) {
    const double start = test::cpu_seconds();
    // Linear here, while it is exponential for backtracking matchers.
    const Network network = compiled(with_pattern("^(a*)*b$"));
    EXPECT_TRUE(matches(network, "\"" + std::string(10000, 'a') + "b\""));
    EXPECT_FALSE(matches(network, "\"" + std::string(10000, 'a') + "\""));
    expect_bad("(a{1000}){1000}", "states");
    expect_bad("((((a{50}){50}){50}){50}){50}", "states");
    expect_bad("(((((((){9999}){9999}){9999}){9999}){9999}){9999}){9999}", "steps");
    expect_bad("(a|b)*a(a|b){20}", "automaton of more than");
    expect_bad("([a-c]|[b-d]){5000}x([a-c]|[b-d]){5000}", "st");
    expect_bad(std::string(200, '(') + std::string(200, ')'), "too deep");
    // Many patterns, each just below the limit, share one budget.
    std::string many = R"({"type": "object", "properties": {)";
    for (int i = 0; i < 200; ++i) {
        many += (i ? ",\"p" : "\"p") + std::to_string(i) +
                "\": " + with_pattern("(a|b)*a(a|b){10}" + std::to_string(i));
    }
    many += "}}";
    EXPECT_THROW(compiled(many), Error);
    const double seconds = test::cpu_seconds() - start;
    if (!test::sanitized()) {
        EXPECT_LT(seconds, 5);
    }
}

}  // namespace
}  // namespace mr::text::grammar
