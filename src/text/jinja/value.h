// Values of templates: Python's values, as far as templates
// see them. Values are immutable (except namespaces), as in
// the sandbox that transformers runs templates in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/budget.h"
#include "text/jinja/marked_text.h"

namespace mr::text::jinja {

struct Expr;
struct Node;
struct Scope;
class Value;

struct Undefined {
    std::string what;  // the name looked up, for errors
};
struct None {};

struct List {
    std::vector<Value> items;
    bool tuple = false;
    int depth = 1;  // nesting of lists and mappings, itself included
};
struct Map {
    std::vector<std::pair<Value, Value>> entries;  // in insertion order
    int depth = 1;
};
// The `loop` variable of a for; it advances with the loop.
struct Loop {
    std::shared_ptr<const List> items;
    std::size_t index = 0;
};
// Owned by the render, because a namespace can contain itself.
struct Namespace {
    std::vector<std::pair<std::string, Value>> members;
};
struct Macro {
    const Node* node = nullptr;
    Scope* scope = nullptr;  // where it was defined
};
// A bound method such as text.strip.
struct Method;
enum class Function { raise_exception, strftime_now, make_namespace, range, dict };

class Value {
  public:
    using ListPtr = std::shared_ptr<const List>;
    using MapPtr = std::shared_ptr<const Map>;
    using TextPtr = std::shared_ptr<const MarkedText>;
    using Data =
        std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, ListPtr, MapPtr,
                     Namespace*, std::shared_ptr<Loop>, Macro, std::shared_ptr<Method>, Function>;

    Value() : data_(Undefined{}) {}
    Value(None none) : data_(none) {}
    Value(bool value) : data_(value) {}
    Value(std::int64_t value) : data_(value) {}
    Value(int value) : data_(static_cast<std::int64_t>(value)) {}
    Value(std::size_t value) : data_(static_cast<std::int64_t>(value)) {}
    Value(double value) : data_(value) {}
    Value(MarkedText text) : data_(std::make_shared<const MarkedText>(std::move(text))) {}
    Value(Undefined undefined) : data_(std::move(undefined)) {}
    Value(Namespace* space) : data_(space) {}
    Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
    Value(ListPtr list) : data_(std::move(list)) {}
    Value(Macro macro) : data_(macro) {}
    Value(Method method);
    Value(Function function) : data_(function) {}
    Value(const char*) = delete;  // would convert to bool

    // A string from the template or the program; from_user() makes one from a user.
    static Value text(std::string_view bytes) { return MarkedText(std::string(bytes)); }
    static Value from_user(std::string_view bytes) { return MarkedText(std::string(bytes), true); }
    // Both throw Failure for too deep nesting. A later entry of a mapping replaces an earlier one.
    static Value list(std::vector<Value> items, bool tuple = false);
    static Value map(std::vector<std::pair<Value, Value>> entries);

    template <class T>
    const T* get() const {
        return std::get_if<T>(&data_);
    }
    const MarkedText* as_text() const { return get<TextPtr>() ? get<TextPtr>()->get() : nullptr; }
    const List* as_list() const { return get<ListPtr>() ? get<ListPtr>()->get() : nullptr; }
    const Map* as_map() const { return get<MapPtr>() ? get<MapPtr>()->get() : nullptr; }
    const Data& data() const { return data_; }

    bool is_undefined() const { return get<Undefined>() != nullptr; }
    bool is_none() const { return get<None>() != nullptr; }
    bool is_callable() const {
        return get<Macro>() || get<std::shared_ptr<Method>>() || get<Function>();
    }
    int depth() const;
    bool truthy() const;
    // Python's type name, for errors.
    std::string_view type_name() const;

  private:
    Data data_;
};

struct Method {
    Value receiver;
    std::string name;
};

// Numbers include booleans, as in Python.
bool is_number(const Value& value);
// Null if it is no integer or boolean.
const std::int64_t* integer_of(const Value& value, std::int64_t& room);
double number_of(const Value& value);

bool equal(Budget& budget, const Value& a, const Value& b);
// a < b. Throws Failure if Python has no order for the two.
bool less(Budget& budget, const Value& a, const Value& b);
const Value* find_key(Budget& budget, const Map& map, const Value& key);

// What a for iterates over: items, keys or characters. Throws Failure if not iterable.
std::vector<Value> iterate(Budget& budget, const Value& value);
// The same as a list that may be shared.
Value::ListPtr as_sequence(Budget& budget, const Value& value);

// str() and repr() of Python.
MarkedText to_text(Budget& budget, const Value& value);
void write_text(Budget& budget, const Value& value, MarkedText& out);
void write_repr(Budget& budget, const Value& value, MarkedText& out);
std::string float_text(double value);

}  // namespace mr::text::jinja
