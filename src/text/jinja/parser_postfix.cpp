// Parses what follows a value: .name, [item], (arguments), | filter, is test.
#include "text/jinja/filters.h"
#include "text/jinja/parser.h"

namespace mr::text::jinja {

ExprPtr ExprParser::postfix(ExprPtr node) {
    for (;;) {
        if (tokens_.at_op(".") || tokens_.at_op("[")) {
            node = subscript(std::move(node));
        } else if (tokens_.at_op("(")) {
            node = called(std::move(node));
        } else {
            return node;
        }
    }
}

ExprPtr ExprParser::subscript(ExprPtr node) {
    Expr expr = make(ExprKind::attribute);
    expr.parts.push_back(std::move(node));
    if (tokens_.take_op(".")) {
        if (tokens_.at(TokenKind::integer)) {
            expr.kind = ExprKind::item;
            expr.parts.push_back(primary());
        } else {
            expr.name = tokens_.expect_name();
        }
        return finish(std::move(expr));
    }
    tokens_.expect_op("[");
    ExprPtr first = tokens_.at_op(":") ? nullptr : expression();
    expr.kind = ExprKind::item;
    expr.parts.push_back(std::move(first));
    if (tokens_.take_op(":")) {
        expr.kind = ExprKind::slice;
        const auto bound = [&] {
            return tokens_.at_op(":") || tokens_.at_op("]") ? nullptr : expression();
        };
        expr.parts.push_back(bound());
        expr.parts.push_back(tokens_.take_op(":") ? bound() : nullptr);
    }
    tokens_.expect_op("]");
    return finish(std::move(expr));
}

ExprPtr ExprParser::called(ExprPtr node) {
    Expr call = make(ExprKind::call);
    call.parts.push_back(std::move(node));
    call_arguments(call);
    return finish(std::move(call));
}

void ExprParser::call_arguments(Expr& call) {
    tokens_.expect_op("(");
    while (!tokens_.at_op(")")) {
        if (tokens_.take_op("*")) {
            if (call.more_arguments || call.more_keywords) tokens_.unexpected();
            call.more_arguments = expression();
        } else if (tokens_.take_op("**")) {
            if (call.more_keywords) tokens_.unexpected();
            call.more_keywords = expression();
        } else if (tokens_.at(TokenKind::name) && tokens_.ahead().kind == TokenKind::op &&
                   tokens_.ahead().text == "=") {
            std::string name = tokens_.expect_name();
            tokens_.expect_op("=");
            call.keywords.emplace_back(std::move(name), expression());
        } else {
            if (!call.keywords.empty() || call.more_arguments || call.more_keywords) {
                tokens_.fail("a positional argument follows a named one");
            }
            call.arguments.push_back(expression());
        }
        if (!tokens_.at_op(")")) tokens_.expect_op(",");
    }
    tokens_.expect_op(")");
}

ExprPtr ExprParser::filters_and_tests(ExprPtr node) {
    for (;;) {
        if (tokens_.take_op("|")) {
            node = filter_call(std::move(node));
        } else if (tokens_.take_name("is")) {
            node = test(std::move(node));
        } else if (tokens_.at_op("(")) {
            node = called(std::move(node));
        } else {
            return node;
        }
    }
}

ExprPtr ExprParser::filter_call(ExprPtr input) {
    Expr expr = make(ExprKind::filter);
    expr.name = tokens_.expect_name();
    if (!lenient && !find_filter(expr.name))
        tokens_.fail("the filter '" + expr.name + "' is not supported");
    expr.parts.push_back(std::move(input));
    if (tokens_.at_op("(")) call_arguments(expr);
    return finish(std::move(expr));
}

ExprPtr ExprParser::filters_of_block() {
    ExprPtr node;
    while (tokens_.take_op("|")) node = filter_call(std::move(node));
    return node;
}

ExprPtr ExprParser::test(ExprPtr input) {
    Expr expr = make(ExprKind::test);
    const bool negated = tokens_.take_name("not");
    expr.name = tokens_.expect_name();
    if (!lenient && !find_test(expr.name))
        tokens_.fail("the test '" + expr.name + "' is not supported");
    expr.parts.push_back(std::move(input));
    const TokenKind next = tokens_.current().kind;
    if (tokens_.at_op("(")) {
        call_arguments(expr);
    } else if (tokens_.at_name("is")) {
        tokens_.fail("a test follows a test");
    } else if ((next == TokenKind::name && !tokens_.at_name("else") && !tokens_.at_name("or") &&
                !tokens_.at_name("and")) ||
               next == TokenKind::text || next == TokenKind::integer || next == TokenKind::real ||
               tokens_.at_op("[") || tokens_.at_op("{")) {
        const TokenStream::Level level(tokens_);
        expr.arguments.push_back(postfix(primary()));
    }
    ExprPtr made = finish(std::move(expr));
    if (!negated) return made;
    Expr inverse = make(ExprKind::logical_not);
    inverse.parts.push_back(std::move(made));
    return finish(std::move(inverse));
}

}  // namespace mr::text::jinja
