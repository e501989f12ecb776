#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/unicode.h"

namespace mr::text::jinja {
namespace {

int deeper(int depth) {
    if (depth >= kMaxValueDepth) {
        throw Failure{"nests lists deeper than " + std::to_string(kMaxValueDepth) + " levels"};
    }
    return depth + 1;
}

bool same_key_kind(const Value& a, const Value& b) { return a.data().index() == b.data().index(); }

}  // namespace

Value::Value(Method method) {
    deeper(method.receiver.depth());
    data_ = std::make_shared<Method>(std::move(method));
}

Value Value::list(std::vector<Value> items, bool tuple) {
    auto made = std::make_shared<List>();
    int depth = 0;
    for (const Value& item : items) depth = std::max(depth, item.depth());
    made->depth = deeper(depth);
    made->items = std::move(items);
    made->tuple = tuple;
    return ListPtr(std::move(made));
}

Value Value::map(std::vector<std::pair<Value, Value>> entries) {
    auto made = std::make_shared<Map>();
    int depth = 0;
    for (const auto& [key, value] : entries) {
        depth = std::max({depth, key.depth(), value.depth()});
    }
    made->depth = deeper(depth);
    made->entries = std::move(entries);
    Value out;
    out.data_ = MapPtr(std::move(made));
    return out;
}

int Value::depth() const {
    if (const List* list = as_list()) return list->depth;
    if (const Map* map = as_map()) return map->depth;
    if (const auto* loop = get<std::shared_ptr<Loop>>()) return (*loop)->items->depth + 1;
    if (const auto* method = get<std::shared_ptr<Method>>()) return (*method)->receiver.depth() + 1;
    return 0;
}

bool Value::truthy() const {
    if (is_undefined() || is_none()) return false;
    if (const bool* b = get<bool>()) return *b;
    if (const auto* i = get<std::int64_t>()) return *i != 0;
    if (const auto* d = get<double>()) return *d != 0;
    if (const MarkedText* text = as_text()) return !text->empty();
    if (const List* list = as_list()) return !list->items.empty();
    if (const Map* map = as_map()) return !map->entries.empty();
    return true;
}

std::string_view Value::type_name() const {
    static constexpr std::string_view kNames[] = {
        "undefined", "None",      "bool", "int",   "float",  "str",     "list",
        "dict",      "namespace", "loop", "macro", "method", "function"};
    if (const List* l = as_list(); l && l->tuple) return "tuple";
    return kNames[data_.index()];
}

bool is_number(const Value& value) {
    return value.get<bool>() || value.get<std::int64_t>() || value.get<double>();
}

const std::int64_t* integer_of(const Value& value, std::int64_t& room) {
    if (const auto* i = value.get<std::int64_t>()) return i;
    if (const bool* b = value.get<bool>()) {
        room = *b;
        return &room;
    }
    return nullptr;
}

double number_of(const Value& value) {
    if (const auto* d = value.get<double>()) return *d;
    std::int64_t room = 0;
    const std::int64_t* i = integer_of(value, room);
    return i ? static_cast<double>(*i) : 0;
}

bool equal(Budget& budget, const Value& a, const Value& b) {
    budget.step();
    if (is_number(a) && is_number(b)) {
        std::int64_t ra = 0, rb = 0;
        const auto* ia = integer_of(a, ra);
        const auto* ib = integer_of(b, rb);
        return ia && ib ? *ia == *ib : number_of(a) == number_of(b);
    }
    if (!same_key_kind(a, b)) return false;
    if (const MarkedText* text = a.as_text()) {
        budget.step(text->size() / 64);
        return text->bytes() == b.as_text()->bytes();
    }
    if (const List* list = a.as_list()) {
        const List* other = b.as_list();
        if (list->tuple != other->tuple || list->items.size() != other->items.size()) return false;
        for (std::size_t i = 0; i < list->items.size(); ++i) {
            if (!equal(budget, list->items[i], other->items[i])) return false;
        }
        return true;
    }
    if (const Map* map = a.as_map()) {
        const Map* other = b.as_map();
        if (map->entries.size() != other->entries.size()) return false;
        for (const auto& [key, value] : map->entries) {
            const Value* found = find_key(budget, *other, key);
            if (!found || !equal(budget, value, *found)) return false;
        }
        return true;
    }
    if (a.is_undefined() || a.is_none()) return true;
    if (const auto* space = a.get<Namespace*>()) return *space == *b.get<Namespace*>();
    if (const auto* loop = a.get<std::shared_ptr<Loop>>()) {
        return *loop == *b.get<std::shared_ptr<Loop>>();
    }
    if (const auto* macro = a.get<Macro>()) return macro->node == b.get<Macro>()->node;
    if (const auto* function = a.get<Function>()) return *function == *b.get<Function>();
    return false;
}

bool less(Budget& budget, const Value& a, const Value& b) {
    budget.step();
    if (is_number(a) && is_number(b)) {
        std::int64_t ra = 0, rb = 0;
        const auto* ia = integer_of(a, ra);
        const auto* ib = integer_of(b, rb);
        return ia && ib ? *ia < *ib : number_of(a) < number_of(b);
    }
    if (a.as_text() && b.as_text()) {
        budget.step(a.as_text()->size() / 64);
        return a.as_text()->bytes() < b.as_text()->bytes();  // UTF-8 sorts like its code points
    }
    const List *left = a.as_list(), *right = b.as_list();
    if (left && right && left->tuple == right->tuple) {
        const std::size_t n = std::min(left->items.size(), right->items.size());
        for (std::size_t i = 0; i < n; ++i) {
            if (!equal(budget, left->items[i], right->items[i])) {
                return less(budget, left->items[i], right->items[i]);
            }
        }
        return left->items.size() < right->items.size();
    }
    for (const Value* side : {&a, &b}) {
        if (const auto* u = side->get<Undefined>()) throw Failure{"'" + u->what + "' is undefined"};
    }
    throw Failure{"compares " + std::string(a.type_name()) + " with " + std::string(b.type_name())};
}

const Value* find_key(Budget& budget, const Map& map, const Value& key) {
    for (const auto& [k, v] : map.entries) {
        if (equal(budget, k, key)) return &v;
    }
    return nullptr;
}

std::vector<Value> iterate(Budget& budget, const Value& value) {
    std::vector<Value> out;
    if (const List* list = value.as_list()) {
        budget.hold(list->items.size());
        return list->items;
    }
    if (const Map* map = value.as_map()) {
        budget.hold(map->entries.size());
        for (const auto& entry : map->entries) out.push_back(entry.first);
        return out;
    }
    if (const MarkedText* text = value.as_text()) {
        for (std::size_t i = 0; i < text->size();) {
            budget.hold(1);
            const std::size_t end = i + char_at(text->bytes(), i).size;
            out.push_back(text->slice(i, end));
            i = end;
        }
        return out;
    }
    if (value.is_undefined()) return out;
    throw Failure{"walks through a value of type " + std::string(value.type_name())};
}

Value::ListPtr as_sequence(Budget& budget, const Value& value) {
    if (const auto* list = value.get<Value::ListPtr>()) {
        budget.step((*list)->items.size());
        return *list;
    }
    return *Value::list(iterate(budget, value)).get<Value::ListPtr>();
}

}  // namespace mr::text::jinja
