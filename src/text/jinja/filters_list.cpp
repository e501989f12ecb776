// Filters on lists and mappings.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/text_ops.h"

namespace mr::text::jinja {
namespace {

Value need_filter(Context& context, std::string_view name, const Value& input, const Args& args) {
    const Filter filter = find_filter(name);
    if (!filter) throw Failure{"the filter '" + std::string(name) + "' is not supported"};
    return filter(context, input, args);
}

// Ignores case unless the filter is told otherwise.
Value key_of(Context& context, const Value& item, const Value& path, bool cased) {
    Value key = path.is_undefined() || path.is_none() ? item : get_path(context, item, path);
    if (!cased && key.as_text()) return lower(context.budget, *key.as_text());
    return key;
}

std::vector<Value> need_items(Context& context, const Value& input) {
    return iterate(context.budget, input);
}

// Falsy inputs such as None count as empty, as in Jinja's map and select.
std::vector<Value> items_or_none(Context& context, const Value& input) {
    return input.truthy() ? need_items(context, input) : std::vector<Value>{};
}

Value list_filter(Context& context, const Value& input, const Args& args) {
    args.bind("list", {});
    return Value::list(need_items(context, input));
}

Value first_filter(Context& context, const Value& input, const Args& args) {
    args.bind("first", {});
    const std::vector<Value> items = need_items(context, input);
    return items.empty() ? Value(Undefined{"the first item of nothing"}) : items.front();
}

Value last_filter(Context& context, const Value& input, const Args& args) {
    args.bind("last", {});
    const std::vector<Value> items = need_items(context, input);
    return items.empty() ? Value(Undefined{"the last item of nothing"}) : items.back();
}

Value join_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("join", {"d", "attribute"});
    const MarkedText separator = to_text(context.budget, a[0]);
    std::vector<MarkedText> parts;
    for (const Value& item : need_items(context, input)) {
        const bool whole = a[1].is_undefined() || a[1].is_none();
        parts.push_back(to_text(context.budget, whole ? item : get_path(context, item, a[1])));
    }
    return join(context.budget, separator, parts);
}

Value reverse_filter(Context& context, const Value& input, const Args& args) {
    args.bind("reverse", {});
    if (const MarkedText* text = input.as_text()) return reversed(context.budget, *text);
    std::vector<Value> items = need_items(context, input);
    std::reverse(items.begin(), items.end());
    return Value::list(std::move(items));
}

Value items_filter(Context& context, const Value& input, const Args& args) {
    args.bind("items", {});
    if (input.is_undefined()) return Value::list({});
    if (!input.as_map())
        throw Failure{"items wants a mapping, not " + std::string(input.type_name())};
    return call_method(context, {input, "items"}, {});
}

// std::sort needs a strict weak order and must not be left by an exception halfway; this sort
// allows both, and is stable.
template <class Less>
void merge_sort(Context& context, std::vector<Value>& items, Less less_than) {
    std::vector<Value> other(items.size());
    for (std::size_t width = 1; width < items.size(); width *= 2) {
        context.budget.step(items.size());
        for (std::size_t begin = 0; begin < items.size(); begin += 2 * width) {
            const std::size_t middle = std::min(begin + width, items.size());
            const std::size_t end = std::min(begin + 2 * width, items.size());
            std::size_t a = begin, b = middle;
            for (std::size_t i = begin; i < end; ++i) {
                const bool right = a >= middle || (b < end && less_than(items[b], items[a]));
                other[i] = items[right ? b++ : a++];
            }
        }
        items.swap(other);
    }
}

// Sorts pairs (key, item) by key and returns the items.
Value sorted_by(Context& context, std::vector<Value> pairs, bool backwards) {
    const auto before = [&](const Value& x, const Value& y) {
        const Value &kx = x.as_list()->items[0], &ky = y.as_list()->items[0];
        return backwards ? less(context.budget, ky, kx) : less(context.budget, kx, ky);
    };
    merge_sort(context, pairs, before);
    std::vector<Value> out;
    out.reserve(pairs.size());
    for (const Value& pair : pairs) out.push_back(pair.as_list()->items[1]);
    return Value::list(std::move(out));
}

Value sort_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("sort", {"reverse", "case_sensitive", "attribute"});
    std::vector<Value> pairs;
    for (const Value& item : need_items(context, input)) {
        std::vector<Value> keys;  // "age,name": several keys, in this order
        if (a[2].as_text() && a[2].as_text()->bytes().find(',') != std::string::npos) {
            const MarkedText comma(",");
            for (const MarkedText& part : split(context.budget, *a[2].as_text(), &comma, -1)) {
                keys.push_back(key_of(context, item, part, a[1].truthy()));
            }
        } else {
            keys.push_back(key_of(context, item, a[2], a[1].truthy()));
        }
        pairs.push_back(Value::list({Value::list(std::move(keys)), item}));
    }
    return sorted_by(context, std::move(pairs), a[0].truthy());
}

Value dictsort_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("dictsort", {"case_sensitive", "by", "reverse"});
    const std::string by = a[1].is_undefined() ? "key" : need_text("dictsort", a[1]).bytes();
    if (by != "key" && by != "value") throw Failure{"dictsort by '" + by + "' is not supported"};
    if (!input.as_map()) {
        throw Failure{"dictsort wants a mapping, not " + std::string(input.type_name())};
    }
    std::vector<Value> pairs;
    for (const auto& [key, value] : input.as_map()->entries) {
        context.budget.hold(2);
        pairs.push_back(Value::list({key_of(context, by == "key" ? key : value, {}, a[0].truthy()),
                                     Value::list({key, value}, true)}));
    }
    return sorted_by(context, std::move(pairs), a[2].truthy());
}

Value unique_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("unique", {"case_sensitive", "attribute"});
    std::vector<Value> out, keys;
    for (const Value& item : need_items(context, input)) {
        const Value key = key_of(context, item, a[1], a[0].truthy());
        const bool seen = std::any_of(keys.begin(), keys.end(), [&](const Value& k) {
            return equal(context.budget, k, key);
        });
        if (seen) continue;
        keys.push_back(key);
        out.push_back(item);
    }
    return Value::list(std::move(out));
}

template <bool Largest>
Value extreme_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind(Largest ? "max" : "min", {"case_sensitive", "attribute"});
    Value best = Undefined{"the extreme of nothing"}, best_key;
    bool first = true;
    for (const Value& item : need_items(context, input)) {
        const Value key = key_of(context, item, a[1], a[0].truthy());
        if (first ||
            (Largest ? less(context.budget, best_key, key) : less(context.budget, key, best_key))) {
            best = item;
            best_key = key;
        }
        first = false;
    }
    return best;
}

Value sum_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("sum", {"attribute", "start"});
    Value total = a[1].is_undefined() ? Value(0) : a[1];
    for (const Value& item : need_items(context, input)) {
        const bool whole = a[0].is_undefined() || a[0].is_none();
        total = arithmetic(context, "+", total, whole ? item : get_path(context, item, a[0]));
    }
    return total;
}

Value batch_filter(Context& context, const Value& input, const Args& args) {
    const auto a = args.bind("batch", {"linecount", "fill_with"}, 1);
    const std::int64_t count = need_integer("batch", a[0]);
    if (count < 1) throw Failure{"batch of " + std::to_string(count)};
    std::vector<Value> out, row;
    const auto finish = [&] { out.push_back(Value::list(std::exchange(row, {}))); };
    for (const Value& item : need_items(context, input)) {
        if (static_cast<std::int64_t>(row.size()) == count) finish();
        row.push_back(item);
    }
    if (!row.empty()) {
        while (!a[1].is_undefined() && !a[1].is_none() &&
               static_cast<std::int64_t>(row.size()) < count) {
            context.budget.step();
            row.push_back(a[1]);
        }
        finish();
    }
    return Value::list(std::move(out));
}

Value map_filter(Context& context, const Value& input, const Args& args) {
    std::vector<Value> out;
    if (args.positional.empty()) {
        const auto a = Args{{}, args.named}.bind("map", {"attribute", "default"}, 1);
        for (const Value& item : items_or_none(context, input)) {
            Value found = get_path(context, item, a[0]);
            if (found.is_undefined() && !a[1].is_undefined()) found = a[1];
            out.push_back(std::move(found));
        }
        return Value::list(std::move(out));
    }
    const std::string name = need_text("map", args.positional[0]).bytes();
    const Args rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
    for (const Value& item : items_or_none(context, input)) {
        out.push_back(need_filter(context, name, item, rest));
    }
    return Value::list(std::move(out));
}

// select, reject, selectattr, rejectattr: items, or items whose attribute, pass (or fail) a test;
// without a test, truth is tested.
template <bool Attribute, bool Wanted>
Value choose_filter(Context& context, const Value& input, const Args& args) {
    const std::size_t skip = Attribute ? 1 : 0;
    if (args.positional.size() < skip) throw Failure{"selectattr needs the name of an attribute"};
    Test test = nullptr;
    Args rest;
    if (args.positional.size() > skip) {
        const std::string& name = need_text("select", args.positional[skip]).bytes();
        test = find_test(name);
        if (!test) throw Failure{"the test '" + name + "' is not supported"};
        rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(skip) + 1,
                               args.positional.end());
    }
    rest.named = args.named;
    std::vector<Value> out;
    for (const Value& item : items_or_none(context, input)) {
        const Value value = Attribute ? get_path(context, item, args.positional[0]) : item;
        if ((test ? test(context, value, rest) : value.truthy()) == Wanted) out.push_back(item);
    }
    return Value::list(std::move(out));
}

constexpr FilterEntry kListFilters[] = {
    {"batch", batch_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", choose_filter<false, false>},
    {"rejectattr", choose_filter<true, false>},
    {"reverse", reverse_filter},
    {"select", choose_filter<false, true>},
    {"selectattr", choose_filter<true, true>},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};

}  // namespace

Filter find_list_filter(std::string_view name) {
    for (const FilterEntry& entry : kListFilters) {
        if (entry.name == name) return entry.call;
    }
    return nullptr;
}

}  // namespace mr::text::jinja
