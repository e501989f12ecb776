// Executes a parsed template.
#pragma once

#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/context.h"

namespace mr::text::jinja {

// The variables of a block. Names are owned by the tree or by the caller.
struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<std::string_view, Value>> variables{};
    bool captured = false;  // a macro was defined here and may be called later
};

class Evaluator {
  public:
    explicit Evaluator(Context& context);

    void define(std::string_view name, Value value);  // globally
    // Throws Failure; line() then tells where.
    MarkedText run(const std::vector<Node>& nodes);
    int line() const { return line_; }

  private:
    enum class Flow { go_on, leave, next };

    // A scope nested in `parent` for its lifetime.
    class Inside {
      public:
        Inside(Evaluator& evaluator, Scope* parent);
        ~Inside();
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

      private:
        Evaluator& evaluator_;
        Scope *before_, *mine_;
    };

    Flow execute(const std::vector<Node>& nodes);
    Flow execute(const Node& node);
    Flow loop(const Node& node);
    Flow set_block(const Node& node);
    Flow filter_block(const Node& node);
    void call_block(const Node& node);
    void define_macro(const Node& node);
    Macro macro_of(const Node& node);
    void print(const Value& value);
    void check_output();
    void assign(const Expr& target, const Value& value);
    void set_variable(std::string_view name, Value value);
    // The output of executing `nodes`.
    MarkedText printed(const std::vector<Node>& nodes, Flow& flow);

    Value evaluate(const Expr& expr);
    Value evaluate_here(const Expr& expr);
    Value variable(const std::string& name) const;
    Value mapping(const Expr& expr);
    Value compare(const Expr& expr);
    Value apply_filter(const Expr& expr, const Value& input);
    Value apply_block_filters(const Expr& expr, const Value& input);
    Args arguments(const Expr& expr);
    Value call(const Value& callee, const Args& args, std::string_view name);
    Value call_macro(const Macro& macro, const Args& args);

    Context& context_;
    std::deque<Scope> scopes_;  // all of them; a macro may point to any
    std::vector<Scope*> free_;
    Scope* scope_ = nullptr;
    MarkedText* out_ = nullptr;
    int line_ = 1;
};

}  // namespace mr::text::jinja
