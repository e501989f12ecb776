// --context, --sinks, --window: which tokens of a text stay in the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/parser.h"
#include "decode/generate.h"
#include "model/engine.h"

namespace mr::cli {

struct ContextOptions {
    std::string mode = "full";
    int sinks = 4;
    std::int64_t window = 0;  // 0: the model's context minus the sinks

    bool streams() const { return mode == "streaming"; }
};

// Only --sinks and --window.
void add_window_options(const Command& command, ContextOptions& options);
// `modes`: values of --context, the first is the default. `full`: its description, for the
// help.
void add_context_options(const Command& command, ContextOptions& options,
                         std::initializer_list<const char*> modes,
                         const char* full =
                             "a text that is longer than the context: full stops at "
                             "its end");
// Throws Error (usage) if sinks or a window are given and nothing streams.
void require_streaming(const Command& command, const ContextOptions& options);
// Sinks and window for a model, in any mode. Throws Error (usage) if they are impossible.
model::Stream stream_for(const ContextOptions& options, const model::ModelSpec& spec);
// If the context streams: sets up the engine for it, whose plan depends on the window and not on
// --ctx.
void make_stream(const ContextOptions& options, const model::ModelSpec& spec,
                 model::EngineOptions& engine);
// The same, and the options of a streaming generation. `tokens`: number asked for; below 0: without
// end.
void make_stream(const ContextOptions& options, const model::ModelSpec& spec, int tokens,
                 model::EngineOptions& engine, decode::GenerateOptions& generate);

}  // namespace mr::cli
