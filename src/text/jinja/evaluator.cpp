// Statements.
#include "text/jinja/evaluator.h"

#include <utility>

#include "text/jinja/filters.h"

namespace mr::text::jinja {

Evaluator::Inside::Inside(Evaluator& evaluator, Scope* parent)
    : evaluator_(evaluator), before_(evaluator.scope_) {
    if (evaluator_.free_.empty()) {
        mine_ = &evaluator_.scopes_.emplace_back();
    } else {
        mine_ = evaluator_.free_.back();
        evaluator_.free_.pop_back();
    }
    mine_->parent = parent;
    evaluator_.scope_ = mine_;
}

Evaluator::Inside::~Inside() {
    evaluator_.scope_ = before_;
    if (mine_->captured) return;
    mine_->variables.clear();
    evaluator_.free_.push_back(mine_);
}

Evaluator::Evaluator(Context& context) : context_(context) {
    scope_ = &scopes_.emplace_back();
    define("raise_exception", Function::raise_exception);
    define("strftime_now", Function::strftime_now);
    define("namespace", Function::make_namespace);
    define("range", Function::range);
    define("dict", Function::dict);
}

void Evaluator::define(std::string_view name, Value value) { set_variable(name, std::move(value)); }

void Evaluator::set_variable(std::string_view name, Value value) {
    for (auto& [known, held] : scope_->variables) {
        if (known == name) {
            held = std::move(value);
            return;
        }
    }
    scope_->variables.emplace_back(name, std::move(value));
}

MarkedText Evaluator::run(const std::vector<Node>& nodes) {
    Flow flow = Flow::go_on;
    return printed(nodes, flow);
}

MarkedText Evaluator::printed(const std::vector<Node>& nodes, Flow& flow) {
    MarkedText text;
    MarkedText* const before = std::exchange(out_, &text);
    flow = execute(nodes);
    out_ = before;
    return text;
}

Evaluator::Flow Evaluator::execute(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
        const Flow flow = execute(node);
        if (flow != Flow::go_on) return flow;
    }
    return Flow::go_on;
}

// The limit of the result applies to every intermediate text.
void Evaluator::check_output() {
    if (out_->size() > context_.budget.limits().output) {
        throw Failure{"prints more than " + std::to_string(context_.budget.limits().output) +
                      " bytes"};
    }
}

void Evaluator::print(const Value& value) {
    write_text(context_.budget, value, *out_);
    check_output();
}

Evaluator::Flow Evaluator::execute(const Node& node) {
    const Budget::Level level(context_.budget);
    context_.budget.step();
    line_ = node.line;
    switch (node.kind) {
        case NodeKind::text:
            context_.budget.make(node.text.size());
            out_->append(node.text, false);
            check_output();
            return Flow::go_on;
        case NodeKind::print:
            print(evaluate(*node.expr));
            return Flow::go_on;
        case NodeKind::branches:
            for (const Node::Branch& branch : node.branches) {
                if (!branch.condition || evaluate(*branch.condition).truthy()) {
                    return execute(branch.body);
                }
            }
            return Flow::go_on;
        case NodeKind::loop:
            return loop(node);
        case NodeKind::set:
            assign(*node.target, evaluate(*node.expr));
            return Flow::go_on;
        case NodeKind::set_block:
            return set_block(node);
        case NodeKind::macro:
            define_macro(node);
            return Flow::go_on;
        case NodeKind::call:
            call_block(node);
            return Flow::go_on;
        case NodeKind::filter:
            return filter_block(node);
        case NodeKind::with: {
            std::vector<Value> values;  // all are evaluated before the first assignment
            for (const auto& assignment : node.assignments) {
                values.push_back(evaluate(*assignment.second));
            }
            const Inside inside(*this, scope_);
            for (std::size_t i = 0; i < values.size(); ++i) {
                assign(*node.assignments[i].first, values[i]);
            }
            return execute(node.body);
        }
        case NodeKind::body: {
            const Inside inside(*this, scope_);
            return execute(node.body);
        }
        case NodeKind::leave:
            return Flow::leave;
        case NodeKind::next:
            return Flow::next;
    }
    return Flow::go_on;
}

Evaluator::Flow Evaluator::loop(const Node& node) {
    const Value source = evaluate(*node.expr);
    auto state = std::make_shared<Loop>();
    state->items = as_sequence(context_.budget, source);
    if (node.condition) {
        std::vector<Value> chosen;
        for (const Value& item : state->items->items) {
            const Inside inside(*this, scope_);
            assign(*node.target, item);
            if (evaluate(*node.condition).truthy()) chosen.push_back(item);
        }
        state->items = *Value::list(std::move(chosen)).get<Value::ListPtr>();
    }
    const std::vector<Value>& items = state->items->items;
    if (items.empty()) {
        const Inside inside(*this, scope_);
        return execute(node.otherwise);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
        context_.budget.step();
        const Inside inside(*this, scope_);
        state->index = i;
        set_variable("loop", state);
        assign(*node.target, items[i]);
        if (execute(node.body) == Flow::leave) break;
    }
    return Flow::go_on;
}

Evaluator::Flow Evaluator::set_block(const Node& node) {
    Flow flow = Flow::go_on;
    MarkedText text;
    {
        const Inside inside(*this, scope_);
        text = printed(node.body, flow);
    }
    if (flow != Flow::go_on) return flow;
    Value value = std::move(text);
    if (node.expr) value = apply_block_filters(*node.expr, value);
    assign(*node.target, value);
    return flow;
}

Evaluator::Flow Evaluator::filter_block(const Node& node) {
    const Inside inside(*this, scope_);
    Flow flow = Flow::go_on;
    const Value text = printed(node.body, flow);
    if (flow == Flow::go_on) print(apply_block_filters(*node.expr, text));
    return flow;
}

Macro Evaluator::macro_of(const Node& node) {
    for (Scope* scope = scope_; scope && !scope->captured; scope = scope->parent) {
        scope->captured = true;
    }
    return {&node, scope_};
}

void Evaluator::define_macro(const Node& node) { set_variable(node.name, macro_of(node)); }

void Evaluator::call_block(const Node& node) {
    const Value callee = evaluate(*node.expr->parts[0]);
    Args args = arguments(*node.expr);
    args.named.emplace_back("caller", macro_of(node));
    print(call(callee, args, node.expr->parts[0]->name));
}

void Evaluator::assign(const Expr& target, const Value& value) {
    if (target.kind == ExprKind::name) return set_variable(target.name, value);
    if (target.kind == ExprKind::attribute) {
        const Value space = variable(target.parts[0]->name);
        const auto* held = space.get<Namespace*>();
        if (!held) throw Failure{"'" + target.parts[0]->name + "' is not a namespace()"};
        for (auto& [name, member] : (*held)->members) {
            if (name == target.name) {
                member = value;
                return;
            }
        }
        (*held)->members.emplace_back(target.name, value);
        return;
    }
    const std::vector<Value> items = iterate(context_.budget, need_defined(value));
    if (items.size() != target.parts.size()) {
        throw Failure{"unpacks " + std::to_string(items.size()) + " values into " +
                      std::to_string(target.parts.size())};
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i]);
}

}  // namespace mr::text::jinja
