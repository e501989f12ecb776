// millrace eval: how well a model predicts a text.
#include "decode/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "decode/prompt.h"
#include "text/tokenizer.h"
#include "train/story_floor.h"

namespace mr::cli {
namespace {

struct Options {
    SharedOptions shared;
    std::string text;
    decode::EvalOptions eval;
    ContextOptions context;
};

decode::ContextMode mode_of(const std::string& name) {
    using Mode = decode::ContextMode;
    for (const Mode mode : {Mode::window, Mode::streaming, Mode::recompute}) {
        if (name == decode::context_mode_name(mode)) return mode;
    }
    return Mode::full;
}

// Where the documents are whole stories of the storybook, each with its beginning and its end.
std::optional<train::StoryDistance> distance_to_storybook(const std::string& text,
                                                          const decode::EvalOptions& options,
                                                          const decode::EvalResult& result,
                                                          const text::Tokenizer& tokenizer) {
    if (!options.ends || options.split.empty() || result.cut > 0 || !tokenizer.bos()) {
        return std::nullopt;
    }
    return train::story_distance(decode::split_documents(text, options), result.document_nats);
}

// Documents that are read at a time: short ones fill a pass together.
constexpr int kSideBySide = 16;

int eval(Options options) {
    const InterruptGuard guard;
    const std::string text = read_input(options.text);
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        decode::require_tokenizer(model);
        model::EngineOptions wanted = engine_options(options.shared);
        wanted.max_logits = decode::eval_logit_rows(model.spec);
        wanted.max_sequences = kSideBySide;
        options.eval.mode = mode_of(options.context.mode);
        if (options.eval.mode != decode::ContextMode::full) {
            options.eval.stream = stream_for(options.context, model.spec);
            wanted.stream = decode::stream_of(options.eval);
        }
        if (options.eval.mode == decode::ContextMode::recompute) {
            const std::int64_t seen =
                std::int64_t{options.eval.stream.sinks} + options.eval.stream.window;
            wanted.context = std::max(wanted.context, seen + 1);
        }
        wanted.graph = false;  // nothing is decoded: there is no step to capture
        return wanted;
    });
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    ProgressLine line;
    const decode::EvalResult result = decode::evaluate(engine, text, options.eval, line.callback());
    line.remove();
    const std::optional<train::StoryDistance> distance =
        distance_to_storybook(text, options.eval, result, *loaded.model->tokenizer);
    if (options.shared.json) {
        Json json = {{"model", loaded.model->source},
                     {"text", options.text},
                     {"documents", result.documents},
                     {"tokens", result.tokens},
                     {"bytes", result.bytes},
                     {"nll", result.nll},
                     {"ppl", result.perplexity()},
                     {"bits_per_byte", result.bits_per_byte()},
                     {"nats_per_document", result.nats_per_document()},
                     {"cut", result.cut},
                     {"ctx", engine.options().context},
                     {"context", options.context.mode},
                     {"sinks", options.eval.stream.sinks},
                     {"window", options.eval.stream.window},
                     {"evicted", result.evicted},
                     {"seconds", result.phase.seconds},
                     {"tok_s", result.phase.tokens_per_second()}};
        if (distance) {
            json["storybook"] = {{"nats_per_story", distance->own},
                                 {"entropy", distance->entropy},
                                 {"distance", distance->above},
                                 {"standard_error", distance->error}};
        }
        out(json_text(json));
        return 0;
    }
    out(fmt::format(
        "documents      {}\n"
        "tokens         {}\n"
        "mean NLL       {:.4f} nats\n"
        "perplexity     {:.4f}\n"
        "bits per byte  {:.4f}\n",
        result.documents, result.tokens, result.nll, result.perplexity(), result.bits_per_byte()));
    if (options.eval.ends) {
        out(fmt::format("nats a document {:.3f}\n", result.nats_per_document()));
    }
    if (distance) {
        out(
            fmt::format("the storybook's {:.3f} ({:.3f} is its entropy)\n"
                        "distance        {:.3f} +- {:.3f} nats a story\n",
                        distance->own, distance->entropy, distance->above, distance->error));
    }
    if (result.cut > 0) {
        note(fmt::format("{} of {} documents were cut at the context's {} tokens", result.cut,
                         result.documents, engine.options().context));
    }
    note(fmt::format("{:.0f} tok/s, {:.2f} s", result.phase.tokens_per_second(),
                     result.phase.seconds));
    return 0;
}

}  // namespace

void add_eval(const Command& app, Action& action) {
    auto options = std::make_shared<Options>();
    const Command command = app.add_subcommand("eval", "Perplexity of a text");
    add_model_options(command, options->shared);
    command.add_option("--text", options->text, "The text; '-' reads standard input")
        .required()
        .shown_as("FILE");
    command.add_option("--split", options->eval.split, "Where one document ends and another begins")
        .shown_as("WORDS");
    command.add_option("--limit", options->eval.limit, "At most N documents; 0: all")
        .range(0, 1 << 30)
        .shows_default();
    command.add_flag("--ends", options->eval.ends,
                     "Predict the end of each document, too, as a probability of it has to; for "
                     "stories of 'data storybook' the distance to their entropy is told");
    add_context_options(command, options->context, {"full", "window", "streaming", "recompute"});
    command
        .add_option("--sample", options->eval.sample,
                    "With --context recompute: so many tokens of each document; 0: all")
        .range(std::int64_t{0}, std::int64_t{1} << 30)
        .rare();
    add_engine_options(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Example:\n"
        "  millrace eval model.gguf --text stories.txt --split '<|endoftext|>' --limit 50");
    command.callback([options, &action] { action = [options] { return eval(*options); }; });
}

}  // namespace mr::cli
