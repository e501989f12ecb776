// The methods of Python's strings.
#include <algorithm>

#include "text/jinja/context.h"
#include "text/jinja/text_ops.h"
#include "text/letter_case.h"
#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

using TextMethod = Value (*)(Context& context, const MarkedText& text, const Args& args);

bool left_out(const Value& value) { return value.is_undefined() || value.is_none(); }

Value texts(std::vector<MarkedText> parts, bool tuple = false) {
    std::vector<Value> items;
    items.reserve(parts.size());
    for (MarkedText& part : parts) items.emplace_back(std::move(part));
    return Value::list(std::move(items), tuple);
}

template <bool Left, bool Right>
Value strip_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("strip", {"chars"});
    return strip(context.budget, text, left_out(a[0]) ? nullptr : &need_text("strip", a[0]), Left,
                 Right);
}

template <bool FromRight>
Value split_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("split", {"sep", "maxsplit"});
    const MarkedText* separator = left_out(a[0]) ? nullptr : &need_text("split", a[0]);
    const std::int64_t most = a[1].is_undefined() ? -1 : need_integer("split", a[1]);
    return texts(FromRight ? split_from_right(context.budget, text, separator, most)
                           : split(context.budget, text, separator, most));
}

Value splitlines_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("splitlines", {"keepends"});
    return texts(split_lines(context.budget, text, a[0].truthy()));
}

template <bool FromRight>
Value partition_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("partition", {"sep"}, 1);
    const MarkedText& separator = need_text("partition", a[0]);
    if (separator.empty()) throw Failure{"splits at an empty string"};
    context.budget.make(text.size());
    const std::size_t at =
        FromRight ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
    if (at == std::string::npos) {
        return FromRight ? texts({MarkedText(), MarkedText(), text}, true)
                         : texts({text, MarkedText(), MarkedText()}, true);
    }
    const std::size_t end = at + separator.size();
    return texts({text.slice(0, at), text.slice(at, end), text.slice(end, text.size())}, true);
}

// startswith and endswith: a string, or a tuple of alternatives.
template <bool End>
Value affix_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind(End ? "endswith" : "startswith", {"prefix"}, 1);
    const auto fits = [&](const Value& part) {
        context.budget.step();
        const std::string& bytes = need_text(End ? "endswith" : "startswith", part).bytes();
        return End ? text.bytes().ends_with(bytes) : text.bytes().starts_with(bytes);
    };
    if (const List* list = a[0].as_list()) {
        return std::any_of(list->items.begin(), list->items.end(), fits);
    }
    return fits(a[0]);
}

template <bool End>
Value remove_affix_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind(End ? "removesuffix" : "removeprefix", {"part"}, 1);
    const std::string& part = need_text("removeprefix", a[0]).bytes();
    context.budget.make(text.size());
    if (End && text.bytes().ends_with(part)) return text.slice(0, text.size() - part.size());
    if (!End && text.bytes().starts_with(part)) return text.slice(part.size(), text.size());
    return text;
}

template <MarkedText (*Map)(Budget&, const MarkedText&)>
Value map_method(Context& context, const MarkedText& text, const Args& args) {
    args.bind("the method", {});
    return Map(context.budget, text);
}

Value replace_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("replace", {"old", "new", "count"}, 2);
    return replace(context.budget, text, need_text("replace", a[0]), need_text("replace", a[1]),
                   a[2].is_undefined() ? -1 : need_integer("replace", a[2]));
}

Value join_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("join", {"iterable"}, 1);
    std::vector<MarkedText> parts;
    for (const Value& item : iterate(context.budget, need_defined(a[0]))) {
        parts.push_back(need_text("join", item));
        context.budget.make(parts.back().size());
    }
    return join(context.budget, text, parts);
}

// The index of the first (or last) character at which `part` is found; -1 if it is not.
template <bool Last, bool Must>
Value find_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("find", {"sub", "start", "end"}, 1);
    const std::string& part = need_text("find", a[0]).bytes();
    const CharIndex chars(context.budget, text);
    const auto count = static_cast<std::int64_t>(chars.count());
    const auto bound = [&](const Value& value, std::int64_t standard) {
        if (left_out(value)) return standard;
        const std::int64_t i = need_integer("find", value);
        return std::clamp<std::int64_t>(i < 0 ? std::max(i, -count) + count : i, 0, count + 1);
    };
    const std::int64_t first = bound(a[1], 0), end = std::min(bound(a[2], count), count);
    std::int64_t found = -1;
    if (first <= end) {
        const std::size_t from = chars.byte(static_cast<std::size_t>(first));
        const std::string_view range = std::string_view(text.bytes())
                                           .substr(0, chars.byte(static_cast<std::size_t>(end)))
                                           .substr(from);
        const std::size_t at = Last ? range.rfind(part) : range.find(part);
        if (at != std::string_view::npos) {
            found = static_cast<std::int64_t>(chars.character(from + at));
        }
    }
    if (Must && found < 0) throw Failure{"index finds no such part"};
    return found;
}

Value count_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("count", {"sub"}, 1);
    const std::string& part = need_text("count", a[0]).bytes();
    if (part.empty()) return char_count(context.budget, text) + 1;
    context.budget.step(text.size() / 16);
    std::int64_t count = 0;
    for (std::size_t at = text.bytes().find(part); at != std::string::npos;
         at = text.bytes().find(part, at + part.size())) {
        ++count;
    }
    return count;
}

Value format_method(Context& context, const MarkedText& text, const Args& args) {
    return brace_format(context, text, args);
}

enum class Kind { digit, alpha, alnum, space };
template <Kind Wanted>
Value is_method(Context& context, const MarkedText& text, const Args& args) {
    args.bind("the method", {});
    context.budget.step(text.size() / 16);
    for (std::size_t i = 0; i < text.size();) {
        const Char c = char_at(text.bytes(), i);
        const CharClass kind = class_of(c.code);
        const bool letter = kind == CharClass::letter, number = kind == CharClass::number;
        const bool fits = Wanted == Kind::digit   ? number
                          : Wanted == Kind::alpha ? letter
                          : Wanted == Kind::alnum ? letter || number
                                                  : is_space(c.code);
        if (!fits) return false;
        i += c.size;
    }
    return !text.empty();
}

template <MarkedText (*Map)(Budget&, const MarkedText&),
          MarkedText (*Other)(Budget&, const MarkedText&)>
Value is_case_method(Context& context, const MarkedText& text, const Args& args) {
    args.bind("the method", {});
    return Map(context.budget, text).bytes() == text.bytes() &&
           Other(context.budget, text).bytes() != text.bytes();
}

// ljust, rjust, center, zfill.
template <Align Where>
Value pad_method(Context& context, const MarkedText& text, const Args& args) {
    const auto a = args.bind("the method", {"width", "fillchar"}, 1);
    MarkedText fill(Where == Align::behind_sign ? "0" : " ");
    if (!a[1].is_undefined()) fill = need_text("the method", a[1]);
    return padded(context.budget, text, need_integer("the method", a[0]), Where, fill);
}

constexpr std::pair<std::string_view, TextMethod> kTextMethods[] = {
    {"capitalize", map_method<capitalize>},
    {"center", pad_method<Align::middle>},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method<false, false>},
    {"format", format_method},
    {"index", find_method<false, true>},
    {"isalnum", is_method<Kind::alnum>},
    {"isalpha", is_method<Kind::alpha>},
    {"isdigit", is_method<Kind::digit>},
    {"islower", is_case_method<lower, upper>},
    {"isspace", is_method<Kind::space>},
    {"isupper", is_case_method<upper, lower>},
    {"join", join_method},
    {"ljust", pad_method<Align::left>},
    {"lower", map_method<lower>},
    {"lstrip", strip_method<true, false>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method},
    {"rfind", find_method<true, false>},
    {"rindex", find_method<true, true>},
    {"rjust", pad_method<Align::right>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"strip", strip_method<true, true>},
    {"title", map_method<title>},
    {"upper", map_method<upper>},
    {"zfill", pad_method<Align::behind_sign>},
};

TextMethod find_text_method(std::string_view name) {
    for (const auto& [known, call] : kTextMethods) {
        if (known == name) return call;
    }
    return nullptr;
}

}  // namespace

bool is_text_method(std::string_view name) { return find_text_method(name) != nullptr; }

Value call_text_method(Context& context, const MarkedText& text, std::string_view name,
                       const Args& args) {
    const TextMethod method = find_text_method(name);
    if (!method) throw Failure{"strings have no method '" + std::string(name) + "' here"};
    return method(context, text, args);
}

}  // namespace mr::text::jinja
