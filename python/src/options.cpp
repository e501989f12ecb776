#include "options.h"

#include <limits>

#include "core/error.h"

namespace mr::python {
namespace {

[[noreturn]] void refuse(const char* field, std::string value, const char* problem,
                         const char* remedy) {
    throw Error::usage(
        {.field = field, .value = std::move(value), .problem = problem, .remedy = remedy});
}

// The given value, else the one in the model's files, else the default.
template <typename Given, typename Advised, typename To>
void use(const Given& given, const Advised& advised, To& to) {
    if (given) {
        to = *given;
    } else if (advised) {
        to = *advised;
    }
}

}  // namespace

decode::GenerateOptions Options::of(const model::Model& model) const {
    decode::GenerateOptions out;
    const model::Generation& advice = model.generation;
    if (max_tokens) out.max_tokens = *max_tokens;
    if (out.max_tokens < -1) {
        refuse("max_tokens", std::to_string(out.max_tokens), "must be 0 or more",
               "give -1 for as many as fit");
    }
    if (out.max_tokens < 0) out.max_tokens = std::numeric_limits<int>::max() - 1;
    use(temperature, advice.temperature, out.sampling.temperature);
    use(top_k, advice.top_k, out.sampling.top_k);
    use(top_p, advice.top_p, out.sampling.top_p);
    use(min_p, advice.min_p, out.sampling.min_p);
    // The window in the files belongs to their penalty.
    use(repeat_window, repeat_penalty ? std::nullopt : advice.repeat_window, out.repeat_window);
    use(repeat_penalty, advice.repeat_penalty, out.sampling.repeat_penalty);
    if (out.repeat_window < -1) {
        refuse("repeat_window", std::to_string(out.repeat_window), "must be -1 or more",
               "0 looks at no token, -1 at the whole text");
    }
    out.sampling.seed = seed;
    out.stop = stop;
    out.stop_ids = stop_ids;
    out.min_tokens = min_tokens;
    if (min_tokens < 0) {
        refuse("min_tokens", std::to_string(min_tokens), "must be 0 or more", "leave it out");
    }
    out.ignore_end = ignore_eos;
    if (logprobs < -1 || logprobs > decode::kMostLogprobs) {
        refuse("logprobs", std::to_string(logprobs), "must be 0 to 20", "leave it out for none");
    }
    out.logprobs = logprobs;
    if (model.spec.diffusion) {
        out.diffusion = diffusion_of(model.spec);
        // Defaults from the model's files are for autoregressive models.
        if (!repeat_penalty) out.sampling.repeat_penalty = 1;
    } else {
        require_no_diffusion();
    }
    return out;
}

void Options::require_no_diffusion() const {
    const auto require = [](const char* name, bool given) {
        if (!given) return;
        refuse(name, {}, "only applies to diffusion models, and this one is autoregressive",
               "leave it out");
    };
    require("block", block.has_value());
    require("steps", steps.has_value());
    require("remask", remask.has_value());
    require("confidence", confidence.has_value());
    require("threshold", threshold.has_value());
    require("entropy_bound", entropy_bound.has_value());
    require("prefix_cache", prefix_cache.has_value());
    require("use_gpu_sampler", use_gpu_sampler.has_value());
}

void Options::require_engine_sampler(const char* call) const {
    if (use_gpu_sampler.value_or(true)) return;
    refuse("use_gpu_sampler", {}, (std::string("is not for ") + call).c_str(),
           "leave it out, or time generate()");
}

decode::DiffusionOptions Options::diffusion_of(const model::ModelSpec& spec) const {
    decode::DiffusionOptions out;
    ops::DenoiseParams& denoise = out.denoise;
    if (block) out.block = *block;
    if (block && *block < 1) {
        refuse("block", std::to_string(*block), "must be 1 or more", "leave it out");
    }
    if (steps) denoise.steps = *steps;
    if (steps && *steps < 1) {
        refuse("steps", std::to_string(*steps), "must be 1 or more", "leave it out");
    }
    if (remask) {
        const std::optional<ops::Remask> named = ops::remask_of(*remask);
        if (!named) {
            refuse("remask", *remask, "is not supported",
                   "use sequential, static, dynamic or entropy");
        }
        denoise.remask = *named;
    }
    if (confidence && *confidence != "max" && *confidence != "drawn") {
        refuse("confidence", *confidence, "is not supported", "use max or drawn");
    }
    denoise.drawn = confidence == "drawn";
    if (threshold) denoise.threshold = *threshold;
    if (entropy_bound) denoise.entropy_bound = *entropy_bound;
    if (threshold && denoise.remask != ops::Remask::dynamic) {
        refuse("threshold", {}, "only applies with remask=\"dynamic\"", "leave it out");
    }
    if (entropy_bound && denoise.remask != ops::Remask::entropy) {
        refuse("entropy_bound", {}, "only applies with remask=\"entropy\"", "leave it out");
    }
    if (steps && denoise.remask == ops::Remask::entropy) {
        refuse("steps", {}, "only applies with remask=\"sequential\", \"static\" or \"dynamic\"",
               "leave it out");
    }
    if (prefix_cache) out.prefix_cache = *prefix_cache;
    out.check(spec);
    return out;
}

}  // namespace mr::python
