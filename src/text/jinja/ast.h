// A parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace mr::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind : std::uint8_t {
    literal,      // value
    name,         // name
    list,         // parts
    tuple,        // parts
    mapping,      // parts: key, value, key, value, ...
    attribute,    // parts[0].name
    item,         // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]]; any of the three may be null
    call,         // parts[0](arguments)
    filter,       // parts[0] | name(arguments); parts[0] is null in {% filter %} and {% set %}
    test,         // parts[0] is name(arguments)
    negate,       // -parts[0]
    plus,         // +parts[0]
    logical_not,  // not parts[0]
    logical_and,
    logical_or,
    arithmetic,   // parts[0] name parts[1]
    compare,      // parts[0] names[0] parts[1] names[1] parts[2] ...
    concat,       // parts[0] ~ parts[1] ~ ...
    conditional,  // parts[0] if parts[1] else parts[2]; parts[2] may be null
};

struct Expr {
    ExprKind kind = ExprKind::literal;
    int line = 1;
    int depth = 1;  // nesting of expressions
    Value value{};
    std::string name{};
    std::vector<std::string> names{};
    std::vector<ExprPtr> parts{};
    // For calls, filters and tests.
    std::vector<ExprPtr> arguments{};
    std::vector<std::pair<std::string, ExprPtr>> keywords{};
    ExprPtr more_arguments{}, more_keywords{};  // *args, **kwargs
};

enum class NodeKind : std::uint8_t {
    text,       // text
    print,      // expr
    branches,   // if: branches
    loop,       // for target in expr [if condition]: body, otherwise
    set,        // target = expr
    set_block,  // target: body, expr: its filters or null
    macro,      // name, parameters: body
    call,       // {% call(parameters) expr %} body
    filter,     // expr over body
    with,       // assignments: body
    body,       // {% generation %}: body, as it is
    leave,      // break
    next,       // continue
};

struct Node {
    struct Branch {
        ExprPtr condition;  // null: else
        std::vector<Node> body;
    };
    struct Parameter {
        std::string name;
        ExprPtr standard;  // null: none
    };

    NodeKind kind = NodeKind::text;
    int line = 1;
    std::string text{};
    std::string name{};
    ExprPtr target{}, expr{}, condition{};
    std::vector<Node> body{}, otherwise{};
    std::vector<Branch> branches{};
    std::vector<Parameter> parameters{};
    std::vector<std::pair<ExprPtr, ExprPtr>> assignments{};
    // For macros: whether the body uses these names.
    bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

}  // namespace mr::text::jinja
