// The parts of the template interpreter separately; jinja_reference_test.cpp compares the whole
// with jinja2.
#include <gtest/gtest.h>

#include <string>

#include "comma_locale.h"
#include "core/error.h"
#include "text/jinja/filters.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/template.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/value_json.h"

namespace mr::text::jinja {
namespace {

std::string kinds_of(std::string_view source) {
    std::string out;
    for (const Token& token : tokenize(source)) {
        constexpr std::string_view kLetters = "dbBpPntiro.";
        out += kLetters[static_cast<std::size_t>(token.kind)];
    }
    return out;
}

TEST(JinjaLexer, CutsTags) {
    EXPECT_EQ(kinds_of("a{{ b }}c"), "dpnPd.");
    EXPECT_EQ(kinds_of("{% if x == 'y' %}1{% endif %}"), "bnnotBdbnB.");
    EXPECT_EQ(kinds_of("{{ 1 + 2.5 }}"), "piorP.");
    EXPECT_EQ(kinds_of("{{ {'a': {}} }}"), "potooooP.");
    EXPECT_EQ(kinds_of("{# c #}"), ".");
    EXPECT_EQ(kinds_of(""), ".");
}

TEST(JinjaLexer, KeepsTheTextThatIsMeant) {
    const auto text = [](std::string_view source) {
        std::string out;
        for (const Token& token : tokenize(source)) {
            if (token.kind == TokenKind::data) out += token.text;
        }
        return out;
    };
    EXPECT_EQ(text("a\n  {% x %}\nb\n"), "a\nb");
    EXPECT_EQ(text("a\n  {%- x -%}\n b"), "ab");
    EXPECT_EQ(text("a\n  {%+ x +%}\nb"), "a\n  \nb");
    EXPECT_EQ(text("a {{ x }}\nb"), "a \nb");
    EXPECT_EQ(text("a {{- x -}} \nb"), "ab");
    EXPECT_EQ(text("{% raw %}{{ x }}{% endraw %}\n!"), "{{ x }}!");
    EXPECT_EQ(text("a\r\nb\rc\n"), "a\nb\nc");
}

TEST(JinjaLexer, CountsLines) {
    try {
        tokenize("a\n{# b\nc #}\n{{ 'd\ne' }}\n{{ ? }}");
        FAIL();
    } catch (const SyntaxFailure& failure) {
        EXPECT_EQ(failure.line, 6);
    }
}

TEST(JinjaParser, BuildsTheTreeThatJinjaDoes) {
    const auto nodes = parse("{{ -a.b | abs + 1 }}");
    ASSERT_EQ(nodes.size(), 1u);
    const Expr& sum = *nodes[0].expr;
    EXPECT_EQ(sum.kind, ExprKind::arithmetic);
    EXPECT_EQ(sum.parts[0]->kind, ExprKind::filter);
    EXPECT_EQ(sum.parts[0]->parts[0]->kind, ExprKind::negate);
    EXPECT_EQ(sum.parts[0]->parts[0]->parts[0]->kind, ExprKind::attribute);
    EXPECT_EQ(parse("{% for a, b in c if d %}{% else %}{% endfor %}")[0].target->parts.size(), 2u);
}

std::string error_of(std::string_view source, const RenderOptions& options = {}) {
    try {
        return "no error but " + Template(source, "t.jinja").render({}, options).bytes();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        return error.what();
    }
}

TEST(Jinja, ErrorsNameTheTemplateAndTheLine) {
    EXPECT_EQ(error_of("\n{{ x | wrong }}"),
              "t.jinja: line 2: the filter 'wrong' is not supported");
    EXPECT_EQ(error_of("{{ x is wrong }}"), "t.jinja: line 1: the test 'wrong' is not supported");
    EXPECT_EQ(error_of("{% include 'x' %}"), "t.jinja: line 1: the tag 'include' is not supported");
    EXPECT_EQ(error_of("\n\n{% if x %}\n"), "t.jinja: line 3: the block of line 3 has no endif");
    EXPECT_EQ(error_of("a\n{{ x.y }}"), "t.jinja: line 2: 'x' is undefined");
    EXPECT_EQ(error_of("a\nb\n{{ f() }}"), "t.jinja: line 3: 'f' is not a function or macro");
    EXPECT_EQ(error_of("{{ raise_exception('no') }}"), "t.jinja: line 1: no");
    EXPECT_THROW(Template("{{ raise_exception('no') }}", "t").render({}), Refusal);
}

TEST(Jinja, BoundsHold) {
    RenderOptions options;
    options.limits.steps = 1000;
    EXPECT_NE(error_of("{% for i in range(9999) %}{% endfor %}", options).find("steps"),
              std::string::npos);
    options = {};
    options.limits.output = 1000;
    EXPECT_NE(error_of("{% for i in range(999) %}xx{% endfor %}", options).find("prints more"),
              std::string::npos);
    options = {};
    options.limits.made = 1000;
    EXPECT_NE(error_of("{{ ('x' * 600 ~ 'y' * 600) | length }}", options).find("bytes of text"),
              std::string::npos);
    EXPECT_NE(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("levels"),
              std::string::npos);
    EXPECT_NE(error_of("{{ " + std::string(1000, '(') + "1" + std::string(1000, ')') + " }}")
                  .find("levels"),
              std::string::npos);
    EXPECT_THROW(Template(std::string(kMaxTemplateBytes + 1, 'x'), "t"), Error);
    EXPECT_THROW(value_of_json(std::string(100000, '['), true), Failure);
}

// User text as "_", the rest unchanged.
std::string marked(std::string_view source, std::string_view user = "Us<x>Er") {
    const MarkedText text = Template(source, "t")
                                .render({{"u", Value::from_user(user)},
                                         {"d", value_of_json(R"({"k": "v", "l": ["w"]})", true)}});
    std::string out = text.bytes();
    for (const LiteralRange& range : text.user()) {
        std::fill(out.begin() + static_cast<std::ptrdiff_t>(range.begin),
                  out.begin() + static_cast<std::ptrdiff_t>(range.end), '_');
    }
    return out;
}

TEST(Jinja, MarksFollowTheText) {
    EXPECT_EQ(marked("a{{ u }}b"), "a_______b");
    EXPECT_EQ(marked("{{ 'a' + u ~ 'b' + u[1:3] }}"), "a_______b__");
    EXPECT_EQ(marked("{{ ('  ' + u + 'x ') | trim }}"), "_______x");
    EXPECT_EQ(marked("{{ (u + ' abc') | title }}{{ (u + 'aB').capitalize() }}"),
              "_______ Abc_______ab");
    EXPECT_EQ(marked("{{ ('a' + u + 'b') | upper }}"), "A_______B");
    EXPECT_EQ(marked("{{ ('a' + u)[::-1] }}"), "_______a");
    EXPECT_EQ(marked("{{ [u, 'a'] | join('-') }}{{ ', '.join([u, u]) }}"),
              "_______-a_______, _______");
    EXPECT_EQ(marked("{{ (u + '|' + u).split('|')[1] }}"), "_______");
    EXPECT_EQ(marked("{{ ('a|b' + u).split('|') | join('+') }}"), "a+b_______");
    EXPECT_EQ(marked("{{ ['a', u] }}"), "['a', '_______']");
    EXPECT_EQ(marked("{{ {'a': u} | tojson }}"), "{\"a\": \"_______\"}");
    EXPECT_EQ(marked("{{ d | tojson }}"), "{\"_\": \"_\", \"_\": [\"_\"]}");
    EXPECT_EQ(marked("{{ u | tojson }}", "a\n\"b"), "\"______\"");
    EXPECT_EQ(marked("{{ '%s-%s' % (u, 'a') }}{{ '{}!'.format(u) }}"), "_______-a_______!");
    EXPECT_EQ(marked("{{ ('a\nb' + u) | indent(2) }}"), "a\n  b_______");
    EXPECT_EQ(marked("{% set x %}a{{ u }}{% endset %}{{ x }}"), "a_______");
    EXPECT_EQ(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) | lower }}"), "<_______>");
    EXPECT_EQ(marked("{% for c in u[:2] + 'z' %}{{ c }},{% endfor %}"), "_,_,z,");
    EXPECT_EQ(marked("{{ u | length }}{{ {'Us<x>Er': 'own'}[u] }}"), "7own");
    EXPECT_EQ(marked("{{ [u, 'b'] | map('upper') | list | first ~ 'x' }}"), "_______x");
    EXPECT_EQ(marked("{{ u | string | safe }}{{ (u, 'a')[0] }}{{ u * 2 }}"),
              std::string(7 + 7 + 14, '_'));
}

// A replacement of user text counts as user text; so does a user's replacement of template
// text.
TEST(Jinja, ReplacementsCountAsPeoplesWhereEitherSideIs) {
    EXPECT_EQ(marked("{{ u | replace('<x>', 'ABC') }}"), "_______");
    EXPECT_EQ(marked("{{ 'a<x>b' | replace('<x>', u) }}"), "a_______b");
    EXPECT_EQ(marked("{{ 'a<x>b'.replace('<x>', 'C') }}"), "aCb");
    EXPECT_EQ(marked("{{ ('<x>' + u) | replace('<x>', 'C') }}"), "C_____");
    // Half of the mark is the template's, half is user text.
    EXPECT_EQ(marked("{{ ('<|im_' + u) | replace('<|im_end|>', 'C') }}", "end|>"), "_");
}

TEST(Jinja, TellsTheTimeItIsGiven) {
    std::tm time{};
    time.tm_year = 100;
    time.tm_mday = 2;
    EXPECT_EQ(Template("{{ strftime_now('%Y-%m-%d') }}", "t").render({}, {.now = time}).bytes(),
              "2000-01-02");
    EXPECT_NE(error_of("{{ strftime_now('%Q') }}").find("%Q"), std::string::npos);
}

// What Python 3.11 prints for the same expressions.
TEST(Jinja, PercentFormatsAsPythonDoes) {
    const std::pair<const char*, const char*> cases[] = {
        {"'%05d' % -3", "-0003"},
        {"'%05d' % 3", "00003"},
        {"'%+05d' % 3", "+0003"},
        {"'%-05d|' % 3", "3    |"},
        {"'%-5d|' % -3", "-3   |"},
        {"'%05d' % true", "00001"},
        {"'%3d' % 12345", "12345"},
        {"'%.3d' % 5", "005"},
        {"'%+.3d' % 5", "+005"},
        {"'%.3d' % 2.7", "002"},
        {"'%.0d' % 0", "0"},
        {"'%5.3d' % -5", " -005"},
        {"'%05.3d' % -5", "-0005"},
        {"'%06.4d' % -5", "-00005"},
        {"'%-6.3d|' % 5", "005   |"},
        {"'%05x' % -255", "-00ff"},
        {"'%.4X' % -171", "-00AB"},
        {"'%05o' % -8", "-0010"},
        {"'%08.2f' % -1.5", "-0001.50"},
        {"'%+08.1f' % 2.25", "+00002.2"},
        {"'%012.3e' % -12345.678", "-001.235e+04"},
        {"'%08g' % -0.5", "-00000.5"},
        {"'%05f' % (1e308 * 10)", "00inf"},
        {"'%06F' % (-1e308 * 10)", "-00INF"},
        {"'%.3s' % 'abcdef'", "abc"},
        {"'%.s|' % 'abc'", "|"},
        {"'%.9s' % 'abc'", "abc"},
        {"'%5s' % '\xC3\xA9'", "    \xC3\xA9"},
        {"'%-5s|' % '\xC3\xA9'", "\xC3\xA9    |"},
        {"'%5.2s|' % '\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E'", "   \xE6\x97\xA5\xE6\x9C\xAC|"},
        {"'%05s' % 'ab'", "   ab"},
        {"'%.3r' % 'abcdef'", "'ab"},
        {"'%6r' % '\xC3\xA9'", "   '\xC3\xA9'"},
        {"'%.2s' % 1234", "12"},
    };
    for (const auto& [expression, wanted] : cases) {
        const std::string source = "{{ " + std::string(expression) + " }}";
        EXPECT_EQ(Template(source, "t").render({}).bytes(), wanted) << expression;
    }
    // A cut text is still the user's.
    EXPECT_EQ(marked("{{ '%9.2s|' % u }}"), "       __|");
    EXPECT_NE(error_of("{{ '%1001d' % 1 }}").find("1000"), std::string::npos);
}

TEST(Jinja, FloatsAreWrittenAsPythonDoes) {
    const std::pair<double, const char*> cases[] = {
        {1.0, "1.0"},          {0.1, "0.1"},
        {1e16, "1e+16"},       {1e15, "1000000000000000.0"},
        {1e-5, "1e-05"},       {0.0001, "0.0001"},
        {123.456, "123.456"},  {-2.5e-9, "-2.5e-09"},
        {1.5e300, "1.5e+300"}, {0.0, "0.0"},
    };
    for (const auto& [value, text] : cases) EXPECT_EQ(float_text(value), text);
}

TEST(Jinja, NumbersHaveAPointInEveryLocale) {
    constexpr const char* kSource =
        "{{ 0.5 + 1 }} {{ '0.6' | float }} {{ ' +1.5 ' | float }} {{ '0,6' | float(2) }} "
        "{{ '2.7' | int }} {{ 2.675 | round(2) }} {{ 2.5 | round }} {{ 1e999 }} {{ '1e-999' | "
        "float }}";
    constexpr const char* kText = "1.5 0.6 1.5 2 2 2.67 2.0 inf 0.0";
    // Names of days and months are in a prompt, too.
    constexpr const char* kDate = "{{ strftime_now('%A %a %B %b %p %x') }}";
    EXPECT_EQ(Template(kSource, "t").render({}).bytes(), kText);
    const std::string date = Template(kDate, "t").render({}).bytes();
    const test::CommaLocale locale;
    MR_NEED_COMMAS(locale);
    EXPECT_EQ(Template(kSource, "t").render({}).bytes(), kText);
    EXPECT_EQ(Template(kDate, "t").render({}).bytes(), date);
}

TEST(JinjaText, SlicesAndSplitsByCharacters) {
    Budget budget{Limits{}};
    const MarkedText text("añ日🙂b", true);
    EXPECT_EQ(char_count(budget, text), 5u);
    EXPECT_EQ(reversed(budget, text).bytes(), "b🙂日ña");
    const CharIndex chars(budget, text);
    EXPECT_EQ(chars.byte(3), 6u);
    EXPECT_EQ(chars.character(6), 3u);
    const MarkedText comma(",");
    EXPECT_EQ(split(budget, MarkedText("a,b,c"), &comma, 1).back().bytes(), "b,c");
    EXPECT_EQ(split_from_right(budget, MarkedText("a,b,c"), &comma, 1).front().bytes(), "a,b");
    // Invalid UTF-8 bytes count one each and are kept.
    EXPECT_EQ(char_count(budget, MarkedText("a\xFF\xFE")), 3u);
    EXPECT_EQ(upper(budget, MarkedText("a\xFF")).bytes(), "A\xFF");
}

}  // namespace
}  // namespace mr::text::jinja
