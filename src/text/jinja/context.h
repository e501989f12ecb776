// The context passed to filters, tests, methods and functions.
#pragma once

#include <ctime>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace mr::text::jinja {

struct Context {
    Budget budget;
    std::tm now{};                       // for strftime_now
    std::deque<Namespace> namespaces{};  // all namespaces of the render
};

struct Args {
    std::vector<Value> positional{};
    std::vector<std::pair<std::string, Value>> named{};

    bool empty() const { return positional.empty() && named.empty(); }
    // The arguments for the parameters `names`, undefined if not given; the first `required` must
    // be given. Throws Failure for too many arguments or unknown names. `who` is for errors.
    std::vector<Value> bind(std::string_view who, std::initializer_list<std::string_view> names,
                            std::size_t required = 0) const;
};

// Convert arguments to the required type; `who` is for errors.
const MarkedText& need_text(std::string_view who, const Value& value);
std::int64_t need_integer(std::string_view who, const Value& value);
// Throws Failure for undefined, as Jinja does everywhere but in a print or a test.
const Value& need_defined(const Value& value);

// value.name and value[key], as Jinja looks them up. Undefined if missing.
Value get_attribute(Context& context, const Value& value, std::string_view name);
Value get_item(Context& context, const Value& value, const Value& key);
// "a.b.0" step by step: the `attribute` argument of filters.
Value get_path(Context& context, const Value& value, const Value& path);
// value[from:to:step]; undefined or None leaves a bound open.
Value get_slice(Context& context, const Value& value, const Value& from, const Value& to,
                const Value& step);

// + - * / // % **
Value arithmetic(Context& context, std::string_view op, const Value& left, const Value& right);
bool contains(Context& context, const Value& container, const Value& item);

bool has_method(const Value& receiver, std::string_view name);
Value call_method(Context& context, const Method& method, const Args& args);
Value call_text_method(Context& context, const MarkedText& text, std::string_view name,
                       const Args& args);
bool is_text_method(std::string_view name);
Value call_function(Context& context, Function function, const Args& args);

// `format % values`.
MarkedText percent_format(Context& context, const MarkedText& format, const Value& values);
// format.format(...): {}, {0}, {name}.
MarkedText brace_format(Context& context, const MarkedText& format, const Args& args);
std::string format_time(std::string_view format, const std::tm& time);
// json.dumps(value, ensure_ascii=False, ...), like transformers' tojson.
Value to_json(Context& context, const Value& value, const Args& args);

}  // namespace mr::text::jinja
