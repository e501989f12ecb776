#include "text/jinja/template.h"

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace mr::text::jinja {
namespace {

ErrorInfo at_line(const std::string& name, int line, std::string problem) {
    return {.file = name, .field = "line " + std::to_string(line), .problem = std::move(problem)};
}

}  // namespace

std::tm local_time() {
    const std::time_t now = std::time(nullptr);
    std::tm out{};
    ::localtime_r(&now, &out);
    return out;
}

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
    if (source.size() > kMaxTemplateBytes) {
        throw Error::input({.file = name_,
                            .value = std::to_string(source.size()) + " bytes",
                            .problem = "is larger than " + std::to_string(kMaxTemplateBytes)});
    }
    try {
        nodes_ = std::make_unique<const std::vector<Node>>(parse(source));
    } catch (const SyntaxFailure& failure) {
        throw Error::input(at_line(name_, failure.line, failure.problem));
    }
}

Template::~Template() = default;

MarkedText Template::render(const Variables& variables, const RenderOptions& options) const {
    Context context{.budget = Budget(options.limits),
                    .now = options.now ? *options.now : local_time()};
    Evaluator evaluator(context);
    for (const auto& [name, value] : variables) evaluator.define(name, value);
    try {
        return evaluator.run(*nodes_);
    } catch (const Failure& failure) {
        ErrorInfo info = at_line(name_, evaluator.line(), failure.problem);
        if (!failure.refused) throw Error::input(std::move(info));
        throw Refusal(ErrorKind::input, std::move(info));
    }
}

}  // namespace mr::text::jinja
