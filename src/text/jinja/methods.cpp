// Methods of lists, mappings and loops, and the global functions.
#include <algorithm>

#include "text/jinja/context.h"

namespace mr::text::jinja {
namespace {

constexpr std::string_view kMapMethods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
// Methods that change their object; transformers' sandbox forbids them as well.
constexpr std::string_view kChanging[] = {"append",  "clear",  "extend",     "insert", "pop",
                                          "popitem", "remove", "setdefault", "update"};
constexpr std::int64_t kMaxRange = 100000;  // as in Jinja's sandbox

template <std::size_t N>
bool has(const std::string_view (&names)[N], std::string_view name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value mapping_method(Context& context, const Value& receiver, std::string_view name,
                     const Args& args) {
    const Map& map = *receiver.as_map();
    if (name == "get") {
        const auto a = args.bind("get", {"key", "default"}, 1);
        const Value* found = find_key(context.budget, map, a[0]);
        if (found) return *found;
        return a[1].is_undefined() && args.positional.size() < 2 && args.named.empty()
                   ? Value(None{})
                   : a[1];
    }
    args.bind(name, {});
    if (name == "copy") return receiver;
    context.budget.hold(2 * map.entries.size());
    std::vector<Value> out;
    for (const auto& [key, value] : map.entries) {
        if (name == "items") out.push_back(Value::list({key, value}, true));
        if (name == "keys") out.push_back(key);
        if (name == "values") out.push_back(value);
    }
    return Value::list(std::move(out));
}

Value sequence_method(Context& context, const Value& receiver, std::string_view name,
                      const Args& args) {
    const List& list = *receiver.as_list();
    if (name == "copy") return receiver;
    const auto a = args.bind(name, {"value"}, 1);
    std::int64_t count = 0;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
        if (!equal(context.budget, list.items[i], a[0])) continue;
        if (name == "index") return i;
        ++count;
    }
    if (name == "index") throw Failure{"index finds no such item"};
    return count;
}

Value make_range(Context& context, const Args& args) {
    if (!args.named.empty() || args.positional.empty() || args.positional.size() > 3) {
        throw Failure{"range takes one to three integers"};
    }
    std::int64_t numbers[3] = {0, 0, 1};
    for (std::size_t i = 0; i < args.positional.size(); ++i) {
        numbers[i] = need_integer("range", args.positional[i]);
    }
    if (args.positional.size() == 1) std::swap(numbers[0], numbers[1]);
    const auto [first, end, step] = numbers;
    if (step == 0) throw Failure{"range has a step of 0"};
    std::vector<Value> out;
    for (std::int64_t i = first; step > 0 ? i < end : i > end;) {
        context.budget.hold(1);
        out.emplace_back(i);
        if (static_cast<std::int64_t>(out.size()) > kMaxRange) {
            throw Failure{"range has more than " + std::to_string(kMaxRange) + " numbers"};
        }
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::list(std::move(out));
}

// dict(a=1), dict({...}), dict([(key, value), ...])
Value make_dict(Context& context, const Args& args) {
    std::vector<std::pair<Value, Value>> entries;
    const auto put = [&](const Value& key, const Value& value) {
        for (auto& [k, v] : entries) {
            if (equal(context.budget, k, key)) {
                v = value;
                return;
            }
        }
        entries.emplace_back(key, value);
    };
    if (args.positional.size() > 1) throw Failure{"dict takes at most one argument"};
    for (const Value& source : args.positional) {
        if (const Map* map = need_defined(source).as_map()) {
            context.budget.hold(map->entries.size());
            entries = map->entries;
            continue;
        }
        for (const Value& pair : iterate(context.budget, source)) {
            const List* list = pair.as_list();
            if (!list || list->items.size() != 2) throw Failure{"dict wants pairs"};
            put(list->items[0], list->items[1]);
        }
    }
    for (const auto& [name, value] : args.named) put(Value::text(name), value);
    return Value::map(std::move(entries));
}

Value make_namespace(Context& context, const Args& args) {
    const Value members = make_dict(context, args);
    context.budget.step(16);  // it lives until the render ends
    Namespace& made = context.namespaces.emplace_back();
    for (const auto& [name, value] : members.as_map()->entries) {
        made.members.emplace_back(need_text("namespace", name).bytes(), value);
    }
    return &made;
}

}  // namespace

bool has_method(const Value& receiver, std::string_view name) {
    if (receiver.as_text()) return is_text_method(name);
    if (receiver.as_map()) return has(kMapMethods, name) || has(kChanging, name);
    if (receiver.as_list()) return has(kListMethods, name) || has(kChanging, name);
    if (receiver.get<std::shared_ptr<Loop>>()) return name == "cycle";
    return false;
}

Value call_method(Context& context, const Method& method, const Args& args) {
    const Value& receiver = method.receiver;
    if (receiver.as_text())
        return call_text_method(context, *receiver.as_text(), method.name, args);
    if (has(kChanging, method.name)) {
        throw Failure{"'" + method.name +
                      "' would change a value, which templates may not; build a new one"};
    }
    if (receiver.as_map()) return mapping_method(context, receiver, method.name, args);
    if (receiver.as_list()) return sequence_method(context, receiver, method.name, args);
    const Loop& loop = **receiver.get<std::shared_ptr<Loop>>();
    if (args.positional.empty() || !args.named.empty()) throw Failure{"cycle needs values"};
    return args.positional[loop.index % args.positional.size()];
}

Value call_function(Context& context, Function function, const Args& args) {
    switch (function) {
        case Function::raise_exception: {
            const auto a = args.bind("raise_exception", {"message"}, 1);
            throw Failure{to_text(context.budget, a[0]).bytes(), true};
        }
        case Function::strftime_now: {
            const auto a = args.bind("strftime_now", {"format"}, 1);
            std::string time = format_time(need_text("strftime_now", a[0]).bytes(), context.now);
            context.budget.make(time.size());
            return MarkedText(std::move(time), a[0].as_text()->any_user(0, a[0].as_text()->size()));
        }
        case Function::make_namespace:
            return make_namespace(context, args);
        case Function::range:
            return make_range(context, args);
        case Function::dict:
            return make_dict(context, args);
    }
    return {};
}

}  // namespace mr::text::jinja
