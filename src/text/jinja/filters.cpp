// Filters on strings, numbers and values of any type; those on lists are in filters_list.cpp.
#include "text/jinja/filters.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "core/read_double.h"
#include "text/jinja/text_ops.h"

namespace mr::text::jinja {
namespace {

bool flag(const Value& value, bool standard) {
    return value.is_undefined() ? standard : value.truthy();
}

Value trim_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("trim", {"chars"});
    const bool all = a[0].is_undefined() || a[0].is_none();
    return strip(context.budget, to_text(context.budget, input),
                 all ? nullptr : &need_text("trim", a[0]), true, true);
}

template <MarkedText (*Map)(Budget&, const MarkedText&)>
Value mapped(Context& context, const Value& input, const Args& args) {
    args.bind("the filter", {});
    return Map(context.budget, to_text(context.budget, input));
}

Value replace_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("replace", {"old", "new", "count"}, 2);
    const bool all = a[2].is_undefined() || a[2].is_none();
    Budget& budget = context.budget;
    return replace(budget, to_text(budget, input), to_text(budget, a[0]), to_text(budget, a[1]),
                   all ? -1 : need_integer("replace", a[2]));
}

Value string_filter(Context& context, const Value& input, const Args& args) {
    args.bind("string", {});
    return to_text(context.budget, input);
}

Value same_filter(Context&, const Value& input, const Args&) { return input; }

// Escapes the five special characters of HTML.
Value escape_filter(Context& context, const Value& input, const Args& args) {
    args.bind("escape", {});
    Value text = to_text(context.budget, input);
    constexpr std::pair<std::string_view, std::string_view> kEscapes[] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
    for (const auto& [from, to] : kEscapes) {
        text = replace(context.budget, *text.as_text(), MarkedText(std::string(from)),
                       MarkedText(std::string(to)), -1);
    }
    return text;
}

Value length_filter(Context& context, const Value& input, const Args& args) {
    args.bind("length", {});
    if (const MarkedText* text = input.as_text()) return char_count(context.budget, *text);
    if (const List* list = input.as_list()) return list->items.size();
    if (const Map* map = input.as_map()) return map->entries.size();
    if (input.is_undefined()) return 0;
    throw Failure{"length wants something with parts, not " + std::string(input.type_name())};
}

Value default_filter(Context&, const Value& input, const Args& args) {
    const auto a = args.bind("default", {"default_value", "boolean"});
    const bool missing = input.is_undefined() || (flag(a[1], false) && !input.truthy());
    if (!missing) return input;
    return args.empty() ? Value::text("") : a[0];
}

Value indent_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("indent", {"width", "first", "blank"});
    MarkedText indent;
    if (a[0].as_text()) {
        indent = *a[0].as_text();
    } else {
        const std::int64_t width = a[0].is_undefined() ? 4 : need_integer("indent", a[0]);
        const std::size_t count = width > 0 ? static_cast<std::size_t>(width) : 0;
        context.budget.make(count);
        indent.append(std::string(count, ' '), false);
    }
    const MarkedText newline("\n");
    // An empty last line counts as a line.
    MarkedText text = need_text("indent", input);
    text.append(newline);
    const std::vector<MarkedText> lines = split_lines(context.budget, text, false);
    MarkedText out;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        context.budget.make(lines[i].size() + indent.size() + 1);
        if (i > 0) out.append(newline);
        if (i == 0 ? flag(a[1], false) : flag(a[2], false) || !lines[i].empty()) {
            out.append(indent);
        }
        out.append(lines[i]);
    }
    return out;
}

// The value of a string as int() reads it, in `base`.
bool read_integer(std::string_view text, std::int64_t base, std::int64_t& out) {
    std::string digits;
    for (const char c : text) {
        if (c != '_') digits += c;
    }
    if (base < 2 || base > 36 || digits.empty()) return false;
    errno = 0;
    char* end = nullptr;
    out = std::strtoll(digits.c_str(), &end, static_cast<int>(base));
    return errno == 0 && end == digits.c_str() + digits.size();
}

bool read_real(const std::string& text, double& out) {
    const auto value = text.find('(') == text.npos ? read_double(text) : std::nullopt;  // nan(...)
    out = value.value_or(0);
    return value.has_value();
}

bool to_real(Context& context, const Value& input, double& out) {
    need_defined(input);
    if (is_number(input)) {
        out = number_of(input);
        return true;
    }
    const MarkedText* text = input.as_text();
    return text && read_real(strip(context.budget, *text, nullptr, true, true).bytes(), out);
}

Value int_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("int", {"default", "base"});
    need_defined(input);
    std::int64_t out = 0;
    if (const std::int64_t* i = integer_of(input, out)) return *i;
    if (const MarkedText* text = input.as_text()) {
        const std::int64_t base = a[1].is_undefined() ? 10 : need_integer("int", a[1]);
        const std::string bare = strip(context.budget, *text, nullptr, true, true).bytes();
        if (read_integer(bare, base, out)) return out;
    }
    double real = 0;
    if (to_real(context, input, real) && std::abs(real) < 9.2e18) {
        return static_cast<std::int64_t>(real);
    }
    return a[0].is_undefined() ? Value(0) : a[0];
}

Value float_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("float", {"default"});
    double out = 0;
    if (to_real(context, input, out)) return out;
    return a[0].is_undefined() ? Value(0.0) : a[0];
}

Value round_filter(Context&, const Value& input, const Args& args) {
    const auto a = args.bind("round", {"precision", "method"});
    if (!is_number(need_defined(input))) {
        throw Failure{"round wants a number, not " + std::string(input.type_name())};
    }
    const std::int64_t digits = a[0].is_undefined() ? 0 : need_integer("round", a[0]);
    const std::string method = a[1].is_undefined() ? "common" : need_text("round", a[1]).bytes();
    if (digits < -300 || digits > 300) throw Failure{"round to " + std::to_string(digits)};
    const double value = number_of(input);
    const double scale = std::pow(10.0, static_cast<double>(digits));
    if (method == "ceil") return std::ceil(value * scale) / scale;
    if (method == "floor") return std::floor(value * scale) / scale;
    if (method != "common") throw Failure{"round by '" + method + "' is not supported"};
    if (input.get<std::int64_t>() && digits >= 0) return input;
    // Rounds by the decimal digits, as Python does: 2.675 is slightly less than it looks.
    if (digits >= 0) {
        char buffer[700];
        const auto written = std::to_chars(buffer, std::end(buffer), value,
                                           std::chars_format::fixed, static_cast<int>(digits));
        return read_double({buffer, written.ptr}).value();
    }
    const double rounded = std::nearbyint(value * scale) / scale;
    if (input.get<std::int64_t>()) return static_cast<std::int64_t>(rounded);
    return rounded;
}

Value abs_filter(Context& context, const Value& input, const Args& args) {
    args.bind("abs", {});
    need_defined(input);
    if (!is_number(input))
        throw Failure{"abs wants a number, not " + std::string(input.type_name())};
    if (const auto* d = input.get<double>()) return std::fabs(*d);
    std::int64_t room = 0;
    const std::int64_t i = *integer_of(input, room);
    return i < 0 ? arithmetic(context, "-", 0, i) : Value(i);
}

Value format_filter(Context& context, const Value& input, const Args& args) {
    if (args.named.empty()) {
        return percent_format(context, to_text(context.budget, input),
                              Value::list(args.positional, true));
    }
    throw Failure{"format with named arguments is not supported"};
}

Value wordcount_filter(Context& context, const Value& input, const Args& args) {
    args.bind("wordcount", {});
    return split(context.budget, to_text(context.budget, input), nullptr, -1).size();
}

constexpr FilterEntry kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", mapped<capitalize>},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"forceescape", escape_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"length", length_filter},
    {"lower", mapped<lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", same_filter},
    {"string", string_filter},
    {"title", mapped<title_of_words>},
    {"tojson", to_json},
    {"trim", trim_filter},
    {"upper", mapped<upper>},
    {"wordcount", wordcount_filter},
};

}  // namespace

Filter find_filter(std::string_view name) {
    for (const FilterEntry& entry : kFilters) {
        if (entry.name == name) return entry.call;
    }
    return find_list_filter(name);
}

}  // namespace mr::text::jinja
