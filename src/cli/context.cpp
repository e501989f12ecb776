#include "cli/context.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace mr::cli {

void add_window_options(const Command& command, ContextOptions& options) {
    command.add_option("--sinks", options.sinks, "First tokens that stay visible")
        .range(0, 1 << 20)
        .shows_default();
    command
        .add_option("--window", options.window,
                    "Latest tokens that are visible; default: the model's context less the sinks")
        .range(std::int64_t{1}, std::int64_t{1} << 29);
}

void add_context_options(const Command& command, ContextOptions& options,
                         std::initializer_list<const char*> modes, const char* full) {
    command
        .add_option("--context", options.mode,
                    std::string("What happens to ") + full +
                        ", streaming keeps its first tokens (sinks) and the latest (window)")
        .one_of(modes)
        .shows_default();
    add_window_options(command, options);
    command.group(kOptions);
}

void require_streaming(const Command& command, const ContextOptions& options) {
    if (options.streams()) return;
    for (const char* option : {"--sinks", "--window"}) {
        if (!command.given(option)) continue;
        throw Error::usage({.field = option,
                            .problem = "only applies with --context streaming",
                            .remedy = "add that, or leave it out"});
    }
}

model::Stream stream_for(const ContextOptions& options, const model::ModelSpec& spec) {
    const std::int64_t window =
        options.window > 0 ? options.window : std::int64_t{spec.context} - options.sinks;
    if (window <= 0) {
        throw Error::usage({.field = "--sinks",
                            .value = std::to_string(options.sinks),
                            .problem = "the model's context of " + std::to_string(spec.context) +
                                       " has no room for a window beside them",
                            .remedy = "use fewer, or give a --window"});
    }
    return {options.sinks, static_cast<std::int32_t>(window)};
}

void make_stream(const ContextOptions& options, const model::ModelSpec& spec,
                 model::EngineOptions& engine) {
    if (!options.streams()) return;
    engine.stream = stream_for(options, spec);
    // A pass has no more tokens than --ctx, if given.
    if (engine.context > 0) {
        engine.max_batch =
            static_cast<int>(std::min<std::int64_t>(engine.max_batch, engine.context));
    }
    engine.context = 0;
}

void make_stream(const ContextOptions& options, const model::ModelSpec& spec, int tokens,
                 model::EngineOptions& engine, decode::GenerateOptions& generate) {
    if (!options.streams()) return;
    generate.stream = stream_for(options, spec);
    make_stream(options, spec, engine);
    generate.max_tokens = tokens < 0 ? std::numeric_limits<int>::max() - 1 : tokens;
}

}  // namespace mr::cli
