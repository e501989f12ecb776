// Parses the statements of a template.
#include "text/jinja/parser.h"

#include <initializer_list>

namespace mr::text::jinja {

bool TokenStream::take_op(std::string_view op) {
    if (!at_op(op)) return false;
    take();
    return true;
}

bool TokenStream::take_name(std::string_view name) {
    if (!at_name(name)) return false;
    take();
    return true;
}

void TokenStream::expect_op(std::string_view op) {
    if (!take_op(op)) unexpected();
}

std::string TokenStream::expect_name() {
    if (!at(TokenKind::name)) unexpected();
    return take().text;
}

void TokenStream::expect(TokenKind kind) {
    if (!at(kind)) unexpected();
    take();
}

void TokenStream::fail(std::string problem) const {
    throw SyntaxFailure{line(), std::move(problem)};
}

void TokenStream::unexpected() const {
    switch (current().kind) {
        case TokenKind::end:
            fail("the template ends too early");
        case TokenKind::block_end:
        case TokenKind::print_end:
            fail("a tag ends too early");
        case TokenKind::integer:
        case TokenKind::real:
            fail("unexpected number");
        case TokenKind::text:
            fail("unexpected string");
        default:
            fail("unexpected '" + current().text + "'");
    }
}

TokenStream::Level::Level(TokenStream& stream) : stream_(stream) {
    if (stream_.depth_ >= kMaxNesting) {
        stream_.fail("nests deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    ++stream_.depth_;
}

namespace {

class StatementParser {
  public:
    explicit StatementParser(std::string_view source)
        : tokens_(tokenize(source)), expressions_(tokens_) {}

    std::vector<Node> run() { return body({}); }

  private:
    using Words = std::initializer_list<std::string_view>;

    Node make(NodeKind kind) const {
        Node node;
        node.kind = kind;
        node.line = tokens_.line();
        return node;
    }

    bool at_any(Words words) const {
        for (const std::string_view word : words) {
            if (tokens_.at_name(word)) return true;
        }
        return false;
    }

    // Parses up to a tag named in `ends`, which
    // stays current; without `ends`, up to the end.
    std::vector<Node> body(Words ends) {
        const TokenStream::Level level(tokens_);
        const int line = tokens_.line();
        std::vector<Node> nodes;
        for (;;) {
            switch (tokens_.current().kind) {
                case TokenKind::data:
                    nodes.push_back(make(NodeKind::text));
                    nodes.back().text = tokens_.take().text;
                    break;
                case TokenKind::print_begin:
                    tokens_.take();
                    nodes.push_back(make(NodeKind::print));
                    nodes.back().expr = expressions_.tuple_or_one();
                    tokens_.expect(TokenKind::print_end);
                    break;
                case TokenKind::block_begin:
                    tokens_.take();
                    if (at_any(ends)) return nodes;
                    nodes.push_back(statement());
                    break;
                default:
                    if (ends.size() > 0) {
                        tokens_.fail("the block of line " + std::to_string(line) + " has no " +
                                     std::string(*(ends.end() - 1)));
                    }
                    return nodes;
            }
        }
    }

    void end_tag() { tokens_.expect(TokenKind::block_end); }

    // Parses the body after a tag, and the tag `word` that closes it.
    std::vector<Node> closed_by(std::string_view word) {
        end_tag();
        std::vector<Node> nodes = body({word});
        tokens_.take();
        if (word == "endmacro" && tokens_.at(TokenKind::name)) tokens_.take();
        end_tag();
        return nodes;
    }

    Node statement() {
        const std::string word = tokens_.expect_name();
        if (word == "if") return branches();
        if (word == "for") return loop();
        if (word == "set") return set();
        if (word == "macro") return macro();
        if (word == "call") return call();
        if (word == "with") return with();
        Node node = make(NodeKind::body);
        if (word == "generation") {
            node.body = closed_by("endgeneration");
        } else if (word == "filter") {
            node.kind = NodeKind::filter;
            node.expr = expressions_.filter_call(nullptr);
            while (tokens_.take_op("|")) node.expr = expressions_.filter_call(std::move(node.expr));
            node.body = closed_by("endfilter");
        } else if (word == "print") {
            node.kind = NodeKind::print;
            node.expr = expressions_.expression();
            end_tag();
        } else if (word == "break" || word == "continue") {
            if (loops_ == 0) tokens_.fail(word + " stands outside of a loop");
            node.kind = word == "break" ? NodeKind::leave : NodeKind::next;
            end_tag();
        } else {
            tokens_.fail("the tag '" + word + "' is not supported");
        }
        return node;
    }

    Node branches() {
        Node node = make(NodeKind::branches);
        ++expressions_.lenient;
        node.branches.push_back({expressions_.tuple_or_one(false), {}});
        for (;;) {
            end_tag();
            node.branches.back().body = body({"elif", "else", "endif"});
            if (tokens_.take_name("elif")) {
                node.branches.push_back({expressions_.tuple_or_one(false), {}});
                continue;
            }
            if (tokens_.take_name("else")) {
                end_tag();
                node.branches.push_back({nullptr, body({"endif"})});
            }
            tokens_.take();
            end_tag();
            --expressions_.lenient;
            return node;
        }
    }

    Node loop() {
        Node node = make(NodeKind::loop);
        node.target = expressions_.target(false);
        if (!tokens_.take_name("in")) tokens_.unexpected();
        node.expr = expressions_.tuple_or_one(false);
        if (tokens_.take_name("if")) node.condition = expressions_.expression();
        if (tokens_.at_name("recursive")) tokens_.fail("recursive loops are not supported");
        end_tag();
        ++loops_;
        node.body = body({"else", "endfor"});
        --loops_;
        if (tokens_.take_name("else")) {
            end_tag();
            node.otherwise = body({"endfor"});
        }
        tokens_.take();
        end_tag();
        return node;
    }

    Node set() {
        Node node = make(NodeKind::set);
        node.target = expressions_.target(true);
        if (tokens_.take_op("=")) {
            node.expr = expressions_.tuple_or_one();
            end_tag();
            return node;
        }
        node.kind = NodeKind::set_block;
        node.expr = expressions_.filters_of_block();
        node.body = outside_of_loops("endset");
        return node;
    }

    // For bodies that are separate functions in Jinja: break cannot leave them.
    std::vector<Node> outside_of_loops(std::string_view word) {
        const int loops = std::exchange(loops_, word == "endset" ? loops_ : 0);
        std::vector<Node> nodes = closed_by(word);
        loops_ = loops;
        return nodes;
    }

    void parameters(Node& node) {
        tokens_.expect_op("(");
        while (!tokens_.at_op(")")) {
            node.parameters.push_back({tokens_.expect_name(), nullptr});
            if (tokens_.take_op("=")) {
                node.parameters.back().standard = expressions_.expression();
            } else if (node.parameters.size() > 1 &&
                       node.parameters[node.parameters.size() - 2].standard) {
                tokens_.fail("a parameter without a default follows one with a default");
            }
            if (!tokens_.at_op(")")) tokens_.expect_op(",");
        }
        tokens_.expect_op(")");
    }

    void macro_body(Node& node, std::string_view word) {
        const ExprParser::Seen outside = std::exchange(expressions_.seen, {});
        node.body = outside_of_loops(word);
        node.uses_varargs = expressions_.seen.varargs;
        node.uses_kwargs = expressions_.seen.kwargs;
        node.uses_caller = expressions_.seen.caller;
        expressions_.seen = outside;
    }

    Node macro() {
        Node node = make(NodeKind::macro);
        node.name = tokens_.expect_name();
        parameters(node);
        macro_body(node, "endmacro");
        return node;
    }

    Node call() {
        Node node = make(NodeKind::call);
        node.name = "caller";
        if (tokens_.at_op("(")) parameters(node);
        node.expr = expressions_.unary(true);
        if (node.expr->kind != ExprKind::call) tokens_.fail("{% call %} needs a macro call");
        macro_body(node, "endcall");
        return node;
    }

    Node with() {
        Node node = make(NodeKind::with);
        while (!tokens_.at(TokenKind::block_end)) {
            if (!node.assignments.empty()) tokens_.expect_op(",");
            ExprPtr target = expressions_.target(false);
            tokens_.expect_op("=");
            node.assignments.emplace_back(std::move(target), expressions_.expression());
        }
        node.body = closed_by("endwith");
        return node;
    }

    TokenStream tokens_;
    ExprParser expressions_;
    int loops_ = 0;
};

}  // namespace

std::vector<Node> parse(std::string_view source) { return StatementParser(source).run(); }

}  // namespace mr::text::jinja
