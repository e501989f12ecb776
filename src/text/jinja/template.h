// Chat templates: the Jinja that models carry, executed as transformers does.
//
// docs/chat-templates.md says what is covered.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/jinja/value.h"

namespace mr::text::jinja {

// The template itself refused what it was given, by raise_exception: the template is fine.
class Refusal : public Error {
    using Error::Error;
};

struct RenderOptions {
    std::optional<std::tm> now{};  // what strftime_now tells; none: the local time
    Limits limits{};
};

using Variables = std::vector<std::pair<std::string, Value>>;

// Immutable once made; any number of threads may use one.
class Template {
  public:
    // `name` is what errors call it. Throws Error (input) naming the line for what is not Jinja,
    // and for tags, filters and tests that are not known.
    Template(std::string_view source, std::string name);
    ~Template();

    // Throws Error (input) naming the line, Refusal where the template refuses.
    MarkedText render(const Variables& variables, const RenderOptions& options = {}) const;
    const std::string& name() const { return name_; }

  private:
    std::string name_;
    std::unique_ptr<const std::vector<Node>> nodes_;
};

}  // namespace mr::text::jinja
