#include "cli/next_token_spec.h"

#include <fmt/format.h>

#include "cli/model_name.h"
#include "core/error.h"
#include "model/io/source.h"
#include "model/train/params.h"

namespace mr::cli {

void require_context(const model::ModelSpec& spec, int seq) {
    if (seq <= spec.context) return;
    throw Error::usage({.field = "--seq",
                        .value = std::to_string(seq),
                        .problem = fmt::format("is beyond the model's context of {}", spec.context),
                        .remedy = "use at most that"});
}

model::ModelSpec next_token_spec(const std::string& model, int seq) {
    model::ModelSpec spec = model::trainable_spec(model::planned_model(named_model(model)).spec);
    if (spec.diffusion) {
        throw Error::usage(
            {.field = "model",
             .value = model,
             .problem = "is a diffusion model; this benchmark needs an autoregressive one",
             .remedy = "name another model"});
    }
    require_context(spec, seq);
    return spec;
}

}  // namespace mr::cli
