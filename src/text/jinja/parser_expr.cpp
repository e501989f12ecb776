// Parses expressions, from `a if b else c` down to literals, with Jinja's precedence: filters and
// `is` bind tighter than arithmetic, and `~` looser than `*`.
#include <algorithm>

#include "text/jinja/parser.h"

namespace mr::text::jinja {

Expr ExprParser::make(ExprKind kind) const {
    Expr expr;
    expr.kind = kind;
    expr.line = tokens_.line();
    return expr;
}

// Trees are walked and freed by recursion, so their depth is limited: `1+1+1+...` is deep as well.
ExprPtr ExprParser::finish(Expr expr) const {
    int depth = 0;
    const auto look = [&](const ExprPtr& part) {
        if (part) depth = std::max(depth, part->depth);
    };
    for (const ExprPtr& part : expr.parts) look(part);
    for (const ExprPtr& part : expr.arguments) look(part);
    for (const auto& keyword : expr.keywords) look(keyword.second);
    look(expr.more_arguments);
    look(expr.more_keywords);
    if (depth >= kMaxNesting) {
        tokens_.fail("an expression nests deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    expr.depth = depth + 1;
    return std::make_unique<const Expr>(std::move(expr));
}

ExprPtr ExprParser::binary(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) const {
    Expr expr = make(kind);
    expr.line = left->line;
    expr.name = std::move(name);
    expr.parts.push_back(std::move(left));
    expr.parts.push_back(std::move(right));
    return finish(std::move(expr));
}

ExprPtr ExprParser::expression() {
    const TokenStream::Level level(tokens_);
    return conditional();
}

ExprPtr ExprParser::conditional() {
    ExprPtr left = disjunction();
    while (tokens_.take_name("if")) {
        Expr expr = make(ExprKind::conditional);
        expr.parts.push_back(std::move(left));
        expr.parts.push_back(disjunction());
        expr.parts.push_back(tokens_.take_name("else") ? expression() : nullptr);
        left = finish(std::move(expr));
    }
    return left;
}

ExprPtr ExprParser::disjunction() {
    ExprPtr left = conjunction();
    while (tokens_.take_name("or")) {
        left = binary(ExprKind::logical_or, "or", std::move(left), conjunction());
    }
    return left;
}

ExprPtr ExprParser::conjunction() {
    ExprPtr left = negation();
    while (tokens_.take_name("and")) {
        left = binary(ExprKind::logical_and, "and", std::move(left), negation());
    }
    return left;
}

ExprPtr ExprParser::negation() {
    if (!tokens_.at_name("not")) return comparison();
    const TokenStream::Level level(tokens_);
    Expr expr = make(ExprKind::logical_not);
    tokens_.take();
    expr.parts.push_back(negation());
    return finish(std::move(expr));
}

ExprPtr ExprParser::comparison() {
    ExprPtr first = sum();
    Expr expr = make(ExprKind::compare);
    expr.line = first->line;
    for (;;) {
        if (tokens_.at(TokenKind::op) &&
            (tokens_.at_op("==") || tokens_.at_op("!=") || tokens_.at_op("<") ||
             tokens_.at_op("<=") || tokens_.at_op(">") || tokens_.at_op(">="))) {
            expr.names.push_back(tokens_.take().text);
        } else if (tokens_.take_name("in")) {
            expr.names.emplace_back("in");
        } else if (tokens_.at_name("not") && tokens_.ahead().kind == TokenKind::name &&
                   tokens_.ahead().text == "in") {
            tokens_.take();
            tokens_.take();
            expr.names.emplace_back("not in");
        } else {
            break;
        }
        expr.parts.push_back(sum());
    }
    if (expr.names.empty()) return first;
    expr.parts.insert(expr.parts.begin(), std::move(first));
    return finish(std::move(expr));
}

ExprPtr ExprParser::sum() {
    ExprPtr left = concatenation();
    while (tokens_.at_op("+") || tokens_.at_op("-")) {
        std::string op = tokens_.take().text;
        left = binary(ExprKind::arithmetic, std::move(op), std::move(left), concatenation());
    }
    return left;
}

ExprPtr ExprParser::concatenation() {
    ExprPtr first = product();
    if (!tokens_.at_op("~")) return first;
    Expr expr = make(ExprKind::concat);
    expr.parts.push_back(std::move(first));
    while (tokens_.take_op("~")) expr.parts.push_back(product());
    return finish(std::move(expr));
}

ExprPtr ExprParser::product() {
    ExprPtr left = power();
    while (tokens_.at_op("*") || tokens_.at_op("/") || tokens_.at_op("//") || tokens_.at_op("%")) {
        std::string op = tokens_.take().text;
        left = binary(ExprKind::arithmetic, std::move(op), std::move(left), power());
    }
    return left;
}

ExprPtr ExprParser::power() {
    ExprPtr left = unary(true);
    while (tokens_.take_op("**")) {
        left = binary(ExprKind::arithmetic, "**", std::move(left), unary(true));
    }
    return left;
}

ExprPtr ExprParser::unary(bool with_filters) {
    ExprPtr node;
    if (tokens_.at_op("-") || tokens_.at_op("+")) {
        const TokenStream::Level level(tokens_);
        Expr expr = make(tokens_.at_op("-") ? ExprKind::negate : ExprKind::plus);
        tokens_.take();
        expr.parts.push_back(unary(false));
        node = finish(std::move(expr));
    } else {
        node = primary();
    }
    node = postfix(std::move(node));
    return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExprParser::primary() {
    Expr expr = make(ExprKind::literal);
    switch (tokens_.current().kind) {
        case TokenKind::name: {
            const std::string name = tokens_.take().text;
            if (name == "true" || name == "True") {
                expr.value = true;
            } else if (name == "false" || name == "False") {
                expr.value = false;
            } else if (name == "none" || name == "None") {
                expr.value = None{};
            } else {
                expr.kind = ExprKind::name;
                seen.varargs |= name == "varargs";
                seen.kwargs |= name == "kwargs";
                seen.caller |= name == "caller";
                expr.name = name;
            }
            return finish(std::move(expr));
        }
        case TokenKind::text: {
            std::string text = tokens_.take().text;
            while (tokens_.at(TokenKind::text)) text += tokens_.take().text;
            expr.value = Value::text(text);
            return finish(std::move(expr));
        }
        case TokenKind::integer:
            expr.value = tokens_.take().integer;
            return finish(std::move(expr));
        case TokenKind::real:
            expr.value = tokens_.take().real;
            return finish(std::move(expr));
        default:
            break;
    }
    if (tokens_.at_op("[")) return list();
    if (tokens_.at_op("{")) return mapping();
    if (!tokens_.take_op("(")) tokens_.unexpected();
    if (tokens_.take_op(")")) {
        expr.kind = ExprKind::tuple;
        return finish(std::move(expr));
    }
    ExprPtr inside = tuple_or_one();
    tokens_.expect_op(")");
    return inside;
}

ExprPtr ExprParser::list() {
    Expr expr = make(ExprKind::list);
    tokens_.expect_op("[");
    while (!tokens_.at_op("]")) {
        expr.parts.push_back(expression());
        if (!tokens_.at_op("]")) tokens_.expect_op(",");
    }
    tokens_.expect_op("]");
    return finish(std::move(expr));
}

ExprPtr ExprParser::mapping() {
    Expr expr = make(ExprKind::mapping);
    tokens_.expect_op("{");
    while (!tokens_.at_op("}")) {
        expr.parts.push_back(expression());
        tokens_.expect_op(":");
        expr.parts.push_back(expression());
        if (!tokens_.at_op("}")) tokens_.expect_op(",");
    }
    tokens_.expect_op("}");
    return finish(std::move(expr));
}

bool ExprParser::ends_tuple() const {
    return tokens_.at(TokenKind::block_end) || tokens_.at(TokenKind::print_end) ||
           tokens_.at_op(")") || tokens_.at_op("=") || tokens_.at_name("in");
}

ExprPtr ExprParser::tuple_or_one(bool conditional) {
    const TokenStream::Level level(tokens_);
    Expr expr = make(ExprKind::tuple);
    bool commas = false;
    for (;;) {
        if (ends_tuple()) break;
        expr.parts.push_back(conditional ? expression() : disjunction());
        if (!tokens_.take_op(",")) break;
        commas = true;
    }
    if (commas) return finish(std::move(expr));
    if (expr.parts.empty()) tokens_.unexpected();
    return std::move(expr.parts.front());
}

ExprPtr ExprParser::target(bool spaces) {
    const TokenStream::Level level(tokens_);
    Expr expr = make(ExprKind::tuple);
    bool commas = false;
    for (;;) {
        if (ends_tuple()) break;
        if (tokens_.take_op("(")) {
            expr.parts.push_back(target(spaces));
            tokens_.expect_op(")");
        } else {
            Expr name = make(ExprKind::name);
            name.name = tokens_.expect_name();
            for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
                if (name.name == word) tokens_.fail("nothing can be assigned to " + name.name);
            }
            ExprPtr made = finish(std::move(name));
            if (spaces && tokens_.take_op(".")) {
                Expr member = make(ExprKind::attribute);
                member.name = tokens_.expect_name();
                member.parts.push_back(std::move(made));
                made = finish(std::move(member));
            }
            expr.parts.push_back(std::move(made));
        }
        if (!tokens_.take_op(",")) break;
        commas = true;
    }
    if (expr.parts.empty()) tokens_.unexpected();
    if (commas) return finish(std::move(expr));
    return std::move(expr.parts.front());
}

}  // namespace mr::text::jinja
