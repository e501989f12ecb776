// Expressions.
#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/filters.h"

namespace mr::text::jinja {

Value Evaluator::variable(const std::string& name) const {
    for (const Scope* scope = scope_; scope; scope = scope->parent) {
        for (const auto& [known, value] : scope->variables) {
            if (known == name) return value;
        }
    }
    return Undefined{name};
}

Value Evaluator::evaluate(const Expr& expr) {
    const Budget::Level level(context_.budget);
    context_.budget.step();
    line_ = expr.line;
    Value value = evaluate_here(expr);
    line_ = expr.line;
    return value;
}

Value Evaluator::evaluate_here(const Expr& expr) {
    const auto part = [&](std::size_t i) { return evaluate(*expr.parts[i]); };
    switch (expr.kind) {
        case ExprKind::literal:
            return expr.value;
        case ExprKind::name:
            return variable(expr.name);
        case ExprKind::list:
        case ExprKind::tuple: {
            std::vector<Value> items;
            for (const ExprPtr& item : expr.parts) items.push_back(evaluate(*item));
            return Value::list(std::move(items), expr.kind == ExprKind::tuple);
        }
        case ExprKind::mapping:
            return mapping(expr);
        case ExprKind::attribute:
            return get_attribute(context_, part(0), expr.name);
        case ExprKind::item: {
            const Value value = part(0);
            return get_item(context_, value, part(1));
        }
        case ExprKind::slice: {
            const Value value = part(0);
            Value bounds[3];
            for (std::size_t i = 0; i < 3; ++i) {
                if (expr.parts[i + 1]) bounds[i] = need_defined(part(i + 1));
            }
            return get_slice(context_, value, bounds[0], bounds[1], bounds[2]);
        }
        case ExprKind::call: {
            const Value callee = part(0);
            return call(callee, arguments(expr), expr.parts[0]->name);
        }
        case ExprKind::filter:
            return apply_filter(expr, part(0));
        case ExprKind::test: {
            const Value input = part(0);
            const Test test = find_test(expr.name);
            if (!test) throw Failure{"the test '" + expr.name + "' is not supported"};
            return test(context_, input, arguments(expr));
        }
        case ExprKind::negate:
            return arithmetic(context_, "-", 0, part(0));
        case ExprKind::plus:
            return arithmetic(context_, "+", 0, part(0));
        case ExprKind::logical_not:
            return !part(0).truthy();
        case ExprKind::logical_and: {
            Value left = part(0);
            return left.truthy() ? part(1) : left;
        }
        case ExprKind::logical_or: {
            Value left = part(0);
            return left.truthy() ? left : part(1);
        }
        case ExprKind::arithmetic: {
            const Value left = part(0);
            return arithmetic(context_, expr.name, left, part(1));
        }
        case ExprKind::compare:
            return compare(expr);
        case ExprKind::concat: {
            MarkedText text;
            for (const ExprPtr& piece : expr.parts) {
                write_text(context_.budget, evaluate(*piece), text);
            }
            return text;
        }
        case ExprKind::conditional:
            if (part(1).truthy()) return part(0);
            return expr.parts[2] ? part(2) : Value(Undefined{"the missing else of a condition"});
    }
    return {};
}

Value Evaluator::mapping(const Expr& expr) {
    std::vector<std::pair<Value, Value>> entries;
    for (std::size_t i = 0; i < expr.parts.size(); i += 2) {
        Value key = evaluate(*expr.parts[i]);
        Value value = evaluate(*expr.parts[i + 1]);
        if (key.as_map() || (key.as_list() && !key.as_list()->tuple)) {
            throw Failure{"uses " + std::string(key.type_name()) + " as a key"};
        }
        const auto it = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
            return equal(context_.budget, entry.first, key);
        });
        if (it == entries.end()) {
            entries.emplace_back(std::move(key), std::move(value));
        } else {
            it->second = std::move(value);
        }
    }
    return Value::map(std::move(entries));
}

Value Evaluator::compare(const Expr& expr) {
    Budget& budget = context_.budget;
    Value left = evaluate(*expr.parts[0]);
    for (std::size_t i = 0; i < expr.names.size(); ++i) {
        Value right = evaluate(*expr.parts[i + 1]);
        const std::string& op = expr.names[i];
        const bool holds = op == "=="   ? equal(budget, left, right)
                           : op == "!=" ? !equal(budget, left, right)
                           : op == "<"  ? less(budget, left, right)
                           : op == ">"  ? less(budget, right, left)
                           : op == "<=" ? less(budget, left, right) || equal(budget, left, right)
                           : op == ">=" ? less(budget, right, left) || equal(budget, left, right)
                           : op == "in" ? contains(context_, right, left)
                                        : !contains(context_, right, left);
        if (!holds) return false;
        left = std::move(right);
    }
    return true;
}

Value Evaluator::apply_filter(const Expr& expr, const Value& input) {
    const Filter filter = find_filter(expr.name);
    if (!filter) throw Failure{"the filter '" + expr.name + "' is not supported"};
    return filter(context_, input, arguments(expr));
}

// The filters of a {% filter %} or {% set %} block: the innermost one gets the block's text.
Value Evaluator::apply_block_filters(const Expr& expr, const Value& input) {
    const Budget::Level level(context_.budget);
    return apply_filter(expr, expr.parts[0] ? apply_block_filters(*expr.parts[0], input) : input);
}

Args Evaluator::arguments(const Expr& expr) {
    Args args;
    for (const ExprPtr& argument : expr.arguments) args.positional.push_back(evaluate(*argument));
    for (const auto& [name, argument] : expr.keywords) {
        args.named.emplace_back(name, evaluate(*argument));
    }
    if (expr.more_arguments) {
        for (Value& item : iterate(context_.budget, need_defined(evaluate(*expr.more_arguments)))) {
            args.positional.push_back(std::move(item));
        }
    }
    if (expr.more_keywords) {
        const Value more = evaluate(*expr.more_keywords);
        if (!more.as_map()) throw Failure{"** wants a mapping"};
        for (const auto& [key, value] : more.as_map()->entries) {
            context_.budget.step();
            args.named.emplace_back(need_text("**", key).bytes(), value);
        }
    }
    return args;
}

Value Evaluator::call(const Value& callee, const Args& args, std::string_view name) {
    if (const auto* macro = callee.get<Macro>()) return call_macro(*macro, args);
    if (const auto* method = callee.get<std::shared_ptr<Method>>()) {
        return call_method(context_, **method, args);
    }
    if (const auto* function = callee.get<Function>()) {
        return call_function(context_, *function, args);
    }
    if (callee.is_undefined()) {
        throw Failure{"'" + std::string(name) + "' is not a function or macro"};
    }
    throw Failure{"calls a value of type " + std::string(callee.type_name())};
}

Value Evaluator::call_macro(const Macro& macro, const Args& args) {
    const Node& node = *macro.node;
    const Budget::Level level(context_.budget);
    const Inside inside(*this, macro.scope);
    const std::size_t count = node.parameters.size();
    std::vector<bool> given(count);
    std::vector<Value> more;
    std::vector<std::pair<Value, Value>> more_named;
    for (std::size_t i = 0; i < args.positional.size(); ++i) {
        if (i < count) {
            set_variable(node.parameters[i].name, args.positional[i]);
            given[i] = true;
        } else {
            more.push_back(args.positional[i]);
        }
    }
    bool has_caller = false;
    for (const auto& [name, value] : args.named) {
        const auto it =
            std::find_if(node.parameters.begin(), node.parameters.end(),
                         [&name = name](const Node::Parameter& p) { return p.name == name; });
        if (it != node.parameters.end()) {
            const auto i = static_cast<std::size_t>(it - node.parameters.begin());
            if (given[i]) throw Failure{node.name + " gets '" + name + "' twice"};
            set_variable(it->name, value);
            given[i] = true;
        } else if (name == "caller" && node.uses_caller) {
            set_variable("caller", value);
            has_caller = true;
        } else {
            more_named.emplace_back(Value::text(name), value);
        }
    }
    if (!more.empty() && !node.uses_varargs) {
        throw Failure{node.name + " takes at most " + std::to_string(count) + " arguments"};
    }
    if (!more_named.empty() && !node.uses_kwargs) {
        throw Failure{node.name + " does not take the argument '" +
                      more_named.front().first.as_text()->bytes() + "'"};
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (given[i]) continue;
        const Node::Parameter& parameter = node.parameters[i];
        set_variable(parameter.name, parameter.standard ? evaluate(*parameter.standard)
                                                        : Value(Undefined{parameter.name}));
    }
    if (node.uses_varargs) set_variable("varargs", Value::list(std::move(more), true));
    if (node.uses_kwargs) set_variable("kwargs", Value::map(std::move(more_named)));
    if (node.uses_caller && !has_caller && node.kind == NodeKind::macro) {
        set_variable("caller", Undefined{"caller"});
    }
    Flow flow = Flow::go_on;
    return printed(node.body, flow);
}

}  // namespace mr::text::jinja
