// --context, --sinks, --window: how long texts are kept in the cache.
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
    std::int64_t window = 0;  // 0: what the model's context leaves beside the sinks

    bool streams() const { return mode == "streaming"; }
};

// --sinks and --window alone.
void add_window_options(const Command& command, ContextOptions& options);
// `modes`: what --context takes, the first of them by default. `full`: what that does, for the
// help.
void add_context_options(const Command& command, ContextOptions& options,
                         std::initializer_list<const char*> modes,
                         const char* full =
                             "a text that is longer than the context: full stops at "
                             "its end");
// Throws Error (usage) where sinks or a window were given and nothing streams.
void require_streaming(const Command& command, const ContextOptions& options);
// Sinks and window for a model, whatever the mode. Throws Error (usage) where they cannot be.
model::Stream stream_for(const ContextOptions& options, const model::ModelSpec& spec);
// Where the context streams: an engine for that, whose plan follows the window and not --ctx.
void make_stream(const ContextOptions& options, const model::ModelSpec& spec,
                 model::EngineOptions& engine);
// The same, and the options of a generation that streams. `tokens`: how many were asked for; below
// 0: without end.
void make_stream(const ContextOptions& options, const model::ModelSpec& spec, int tokens,
                 model::EngineOptions& engine, decode::GenerateOptions& generate);

}  // namespace mr::cli
