// Parses tokens to a tree.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace mr::text::jinja {

// Throws SyntaxFailure, also for an unknown filter or test outside of an if.
std::vector<Node> parse(std::string_view source);

class TokenStream {
  public:
    explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    const Token& current() const { return tokens_[pos_]; }
    const Token& ahead() const { return tokens_[pos_ + 1 < tokens_.size() ? pos_ + 1 : pos_]; }
    Token take() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
    int line() const { return current().line; }
    bool at(TokenKind kind) const { return current().kind == kind; }
    bool at_op(std::string_view op) const { return at(TokenKind::op) && current().text == op; }
    bool at_name(std::string_view name) const {
        return at(TokenKind::name) && current().text == name;
    }
    bool take_op(std::string_view op);
    bool take_name(std::string_view name);
    void expect_op(std::string_view op);
    std::string expect_name();
    void expect(TokenKind kind);
    [[noreturn]] void fail(std::string problem) const;
    [[noreturn]] void unexpected() const;

    // One level of nesting for its lifetime.
    class Level {
      public:
        explicit Level(TokenStream& stream);
        ~Level() { --stream_.depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

      private:
        TokenStream& stream_;
    };

  private:
    std::vector<Token> tokens_;
    std::size_t pos_ = 0;
    int depth_ = 0;
};

class ExprParser {
  public:
    explicit ExprParser(TokenStream& tokens) : tokens_(tokens) {}

    ExprPtr expression();
    // a, b, c without brackets, or one expression. `conditional` false: no `x if y`, as in a for.
    ExprPtr tuple_or_one(bool conditional = true);
    // What may stand left of = and after `for`; `spaces`: also namespace.member.
    ExprPtr target(bool spaces);
    // The filters of {% set %} blocks, | a | b(c) without a value; null if there are none.
    ExprPtr filters_of_block();
    ExprPtr filter_call(ExprPtr input);
    ExprPtr unary(bool with_filters);

    // Names that a macro's body uses: varargs, kwargs, caller.
    struct Seen {
        bool varargs = false, kwargs = false, caller = false;
    };
    Seen seen;
    // Inside an if, an unknown filter or test fails only when it is reached, as in Jinja: templates
    // check which program runs them.
    int lenient = 0;

  private:
    ExprPtr conditional();
    ExprPtr disjunction();
    ExprPtr conjunction();
    ExprPtr negation();
    ExprPtr comparison();
    ExprPtr sum();
    ExprPtr concatenation();
    ExprPtr product();
    ExprPtr power();
    ExprPtr primary();
    ExprPtr postfix(ExprPtr node);
    ExprPtr filters_and_tests(ExprPtr node);
    ExprPtr test(ExprPtr input);
    ExprPtr subscript(ExprPtr node);
    ExprPtr list();
    ExprPtr mapping();
    ExprPtr called(ExprPtr node);
    void call_arguments(Expr& call);
    bool ends_tuple() const;

    Expr make(ExprKind kind) const;
    ExprPtr finish(Expr expr) const;
    ExprPtr binary(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) const;

    TokenStream& tokens_;
};

}  // namespace mr::text::jinja
