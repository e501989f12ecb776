// Chat templates: the Jinja templates of models, executed as by transformers.
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

// The template itself refused its input by raise_exception: the template is not at fault.
class Refusal : public Error {
    using Error::Error;
};

std::tm local_time();  // now

struct RenderOptions {
    std::optional<std::tm> now{};  // for strftime_now; none: the local time
    Limits limits{};
};

using Variables = std::vector<std::pair<std::string, Value>>;

// Immutable; may be used by any number of threads.
class Template {
  public:
    // `name` is the template's name in errors. Throws Error (input) naming the line for syntax
    // errors and for unknown tags, filters and tests.
    Template(std::string_view source, std::string name);
    ~Template();

    // Throws Error (input) naming the line, or Refusal if the template refuses.
    MarkedText render(const Variables& variables, const RenderOptions& options = {}) const;
    const std::string& name() const { return name_; }

  private:
    std::string name_;
    std::unique_ptr<const std::vector<Node>> nodes_;
};

}  // namespace mr::text::jinja
