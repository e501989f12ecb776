// Arguments, attributes, items and slices.
#include <algorithm>

#include "text/jinja/context.h"
#include "text/jinja/text_ops.h"
#include "text/unicode.h"

namespace mr::text::jinja {

std::vector<Value> Args::bind(std::string_view who, std::initializer_list<std::string_view> names,
                              std::size_t required) const {
    std::vector<Value> out(names.size());
    std::vector<bool> given(names.size());
    if (positional.size() > names.size()) {
        throw Failure{std::string(who) + " takes at most " + std::to_string(names.size()) +
                      " arguments"};
    }
    for (std::size_t i = 0; i < positional.size(); ++i) {
        out[i] = positional[i];
        given[i] = true;
    }
    for (const auto& [name, value] : named) {
        const auto it = std::find(names.begin(), names.end(), name);
        const auto i = static_cast<std::size_t>(it - names.begin());
        if (it == names.end() || given[i]) {
            throw Failure{std::string(who) + " does not take the argument '" + name + "'"};
        }
        out[i] = value;
        given[i] = true;
    }
    for (std::size_t i = 0; i < required; ++i) {
        if (!given[i]) {
            throw Failure{std::string(who) + " needs the argument '" +
                          std::string(*(names.begin() + i)) + "'"};
        }
    }
    return out;
}

const Value& need_defined(const Value& value) {
    if (const auto* undefined = value.get<Undefined>()) {
        throw Failure{"'" + undefined->what + "' is undefined"};
    }
    return value;
}

const MarkedText& need_text(std::string_view who, const Value& value) {
    need_defined(value);
    if (const MarkedText* text = value.as_text()) return *text;
    throw Failure{std::string(who) + " wants a string, not " + std::string(value.type_name())};
}

std::int64_t need_integer(std::string_view who, const Value& value) {
    need_defined(value);
    std::int64_t room = 0;
    if (const std::int64_t* i = integer_of(value, room)) return *i;
    throw Failure{std::string(who) + " wants an integer, not " + std::string(value.type_name())};
}

namespace {

Value loop_attribute(const Loop& loop, std::string_view name) {
    const std::vector<Value>& items = loop.items->items;
    if (name == "index") return loop.index + 1;
    if (name == "index0") return loop.index;
    if (name == "first") return loop.index == 0;
    if (name == "last") return loop.index + 1 == items.size();
    if (name == "length") return items.size();
    if (name == "revindex") return items.size() - loop.index;
    if (name == "revindex0") return items.size() - loop.index - 1;
    if (name == "depth") return 1;
    if (name == "depth0") return 0;
    if (name == "previtem" && loop.index > 0) return items[loop.index - 1];
    if (name == "nextitem" && loop.index + 1 < items.size()) return items[loop.index + 1];
    return Undefined{"loop." + std::string(name)};
}

// A slice as Python reads it: the first index, and how many follow.
struct Steps {
    std::int64_t first, step, count;
};

Steps steps_of(std::int64_t size, const Value& from, const Value& to, const Value& by) {
    const auto open = [](const Value& v) { return v.is_undefined() || v.is_none(); };
    const std::int64_t step = open(by) ? 1 : need_integer("a slice", by);
    if (step == 0) throw Failure{"a slice has a step of 0"};
    const std::int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    const auto bound = [&](const Value& value, std::int64_t standard) {
        if (open(value)) return standard;
        const std::int64_t i = need_integer("a slice", value);
        return std::clamp(i < 0 ? (i < -size ? low : i + size) : i, low, high);
    };
    const std::int64_t first = bound(from, step < 0 ? high : low);
    const std::int64_t last = bound(to, step < 0 ? low : high);
    const std::int64_t span = step < 0 ? first - last : last - first;
    if (span <= 0) return {0, 1, 0};
    // -step overflows for the smallest integer.
    const std::uint64_t stride =
        step < 0 ? 0 - static_cast<std::uint64_t>(step) : static_cast<std::uint64_t>(step);
    return {first, step,
            static_cast<std::int64_t>((static_cast<std::uint64_t>(span) - 1) / stride + 1)};
}

}  // namespace

Value get_slice(Context& context, const Value& value, const Value& from, const Value& to,
                const Value& step) {
    need_defined(value);
    if (const MarkedText* text = value.as_text()) {
        const CharIndex chars(context.budget, *text);
        const Steps s = steps_of(static_cast<std::int64_t>(chars.count()), from, to, step);
        if (s.step == 1) {
            const auto first = static_cast<std::size_t>(s.first);
            const std::size_t begin = chars.byte(first);
            const std::size_t end = chars.byte(first + static_cast<std::size_t>(s.count));
            context.budget.make(end - begin);
            return text->slice(begin, end);
        }
        context.budget.make(static_cast<std::size_t>(s.count) * 4);
        MarkedText out;
        for (std::int64_t i = 0; i < s.count; ++i) {
            const auto at = static_cast<std::size_t>(s.first + i * s.step);
            out.append(*text, chars.byte(at), chars.byte(at + 1));
        }
        return out;
    }
    if (const List* list = value.as_list()) {
        const Steps s = steps_of(static_cast<std::int64_t>(list->items.size()), from, to, step);
        context.budget.hold(static_cast<std::size_t>(s.count));
        std::vector<Value> items;
        for (std::int64_t i = 0; i < s.count; ++i) {
            items.push_back(list->items[static_cast<std::size_t>(s.first + i * s.step)]);
        }
        return Value::list(std::move(items), list->tuple);
    }
    throw Failure{"takes a slice of " + std::string(value.type_name())};
}

Value get_attribute(Context& context, const Value& value, std::string_view name) {
    need_defined(value);
    if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
        if (!has_method(value, name)) return loop_attribute(**loop, name);
    }
    if (const auto* space = value.get<Namespace*>()) {
        for (const auto& [member, held] : (*space)->members) {
            context.budget.step();
            if (member == name) return held;
        }
        return Undefined{std::string(name)};
    }
    if (has_method(value, name)) return Method{value, std::string(name)};
    if (const Map* map = value.as_map()) {
        if (const Value* found = find_key(context.budget, *map, Value::text(name))) return *found;
    }
    if (const auto* macro = value.get<Macro>(); macro && name == "name")
        return Value::text("macro");
    return Undefined{std::string(name)};
}

Value get_item(Context& context, const Value& value, const Value& key) {
    need_defined(value);
    if (const Map* map = value.as_map()) {
        if (const Value* found = find_key(context.budget, *map, key)) return *found;
    } else {
        std::int64_t room = 0;
        const std::int64_t* index = integer_of(key, room);
        const auto place = [&](std::size_t size) -> std::int64_t {
            const auto n = static_cast<std::int64_t>(size);
            const std::int64_t i = *index < 0 ? *index + n : *index;
            return i >= 0 && i < n ? i : -1;
        };
        if (const List* list = value.as_list(); list && index) {
            const std::int64_t at = place(list->items.size());
            if (at >= 0) return list->items[static_cast<std::size_t>(at)];
            return Undefined{"element " + std::to_string(*index)};
        }
        if (const MarkedText* text = value.as_text(); text && index) {
            const CharIndex chars(context.budget, *text);
            const std::int64_t at = place(chars.count());
            if (at < 0) return Undefined{"element " + std::to_string(*index)};
            const auto i = static_cast<std::size_t>(at);
            return text->slice(chars.byte(i), chars.byte(i + 1));
        }
    }
    if (const MarkedText* name = key.as_text()) {
        if (value.as_map()) {  // its keys were tried above
            if (has_method(value, name->bytes())) return Method{value, name->bytes()};
            return Undefined{name->bytes()};
        }
        return get_attribute(context, value, name->bytes());
    }
    if (key.is_undefined()) return Undefined{key.get<Undefined>()->what};
    return Undefined{"element"};
}

Value get_path(Context& context, const Value& value, const Value& path) {
    if (!path.as_text()) return get_item(context, value, path);
    Value at = value;
    std::string_view rest = path.as_text()->bytes();
    for (;;) {
        context.budget.step();
        const std::size_t dot = rest.find('.');
        const std::string_view part = rest.substr(0, dot);
        const bool number =
            !part.empty() && part.size() < 10 &&
            std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
        at =
            get_item(context, at, number ? Value(std::stoi(std::string(part))) : Value::text(part));
        if (dot == std::string_view::npos) return at;
        rest.remove_prefix(dot + 1);
    }
}

}  // namespace mr::text::jinja
