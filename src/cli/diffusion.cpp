#include "cli/diffusion.h"

#include <fmt/format.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "core/error.h"

namespace mr::cli {
namespace {

constexpr const char* kDiffusionOptions[] = {"--block",       "--steps",         "--remask",
                                             "--threshold",   "--entropy-bound", "--confidence",
                                             "--prefix-cache"};

}  // namespace

void add_diffusion_options(const Command& command, DiffusionChoice& choice, bool shows) {
    decode::DiffusionOptions& options = choice.options;
    command.group("Diffusion models");
    command
        .add_option("--block", options.block, "Tokens per block; default: the model's block size")
        .range(1, 1 << 20);
    command
        .add_option("--steps", options.denoise.steps,
                    "Passes per block (sequential, static, dynamic); default: one per token. A "
                    "block with parts needs at least one pass per part")
        .range(1, 1 << 20);
    command
        .add_option("--remask", choice.remask,
                    "Which tokens a pass settles: from the left (sequential), the most confident "
                    "of a schedule (static), all above the threshold (dynamic), by rising entropy "
                    "(entropy)")
        .one_of({"sequential", "static", "dynamic", "entropy"})
        .shows_default();
    command
        .add_option("--threshold", options.denoise.threshold,
                    "Confidence above which --remask dynamic settles a token")
        .range(0.0, 1.0)
        .shows_default();
    command
        .add_option("--entropy-bound", options.denoise.entropy_bound,
                    "Total entropy, in nats, of the tokens that a pass of --remask entropy settles")
        .range(0.0, 1e6)
        .shows_default()
        .rare();
    command
        .add_option("--confidence", choice.confidence,
                    "What counts as confidence: the largest probability before all filters (max), "
                    "or the drawn token's after them (drawn), as SDAR published it")
        .one_of({"max", "drawn"})
        .shows_default()
        .rare();
    command
        .add_flag("--prefix-cache", options.prefix_cache,
                  "With full attention: cache the keys and values before a block (approximate)")
        .rare();
    if (shows) {
        command.add_flag("--show-denoising", choice.show,
                         "Show each block as it is filled in, on a terminal");
    }
    command.group(kOptions);
}

void use_diffusion(const Command& command, const DiffusionChoice& choice,
                   const model::ModelSpec& spec, model::EngineOptions& engine,
                   decode::GenerateOptions& generate) {
    if (!spec.diffusion) {
        const auto refuse = [](const char* option) {
            throw Error::usage(
                {.field = option,
                 .problem = "only applies to diffusion models, and this one is autoregressive",
                 .remedy = "leave it out"});
        };
        for (const char* option : kDiffusionOptions) {
            if (command.given(option)) refuse(option);
        }
        if (choice.show) refuse("--show-denoising");
        return;
    }
    const auto refuse_given = [&](const char* option, bool applies, const char* where) {
        if (applies || !command.given(option)) return;
        throw Error::usage({.field = option,
                            .problem = std::string("only applies with ") + where,
                            .remedy = "leave it out"});
    };
    generate.diffusion = choice.options;
    ops::DenoiseParams& denoise = generate.diffusion.denoise;
    denoise.remask = *ops::remask_of(choice.remask);
    denoise.drawn = choice.confidence == "drawn";
    refuse_given("--threshold", denoise.remask == ops::Remask::dynamic, "--remask dynamic");
    refuse_given("--entropy-bound", denoise.remask == ops::Remask::entropy, "--remask entropy");
    refuse_given("--steps", denoise.remask != ops::Remask::entropy,
                 "--remask sequential, static or dynamic");
    // Defaults from the model's files are for autoregressive models.
    if (generate.sampling.repeat_penalty != 1 && !command.given("--repeat-penalty")) {
        generate.sampling.repeat_penalty = 1;
    }
    generate.diffusion.check(spec);
    engine.block = generate.diffusion.block_of(spec);
    if (choice.show && ::isatty(STDOUT_FILENO) == 0) {
        throw Error::usage({.field = "--show-denoising",
                            .problem = "only works on a terminal",
                            .remedy = "leave it out if the output is a file or a pipe"});
    }
}

void note_block(const DiffusionChoice& choice, const model::ModelSpec& spec) {
    const int own = spec.diffusion ? spec.diffusion->block : 0;
    if (own == 0 || choice.options.block <= own) return;
    remark(
        fmt::format("--block {}: the model was trained for blocks of {} tokens, and guesses worse "
                    "in larger ones",
                    choice.options.block, own));
}

void refuse_diffusion(const model::Model& model, const char* command) {
    if (!model.spec.diffusion) return;
    throw Error::usage({.field = "MODEL",
                        .value = model.source,
                        .problem = std::string("is a diffusion model; ") + command +
                                   " needs an autoregressive one",
                        .remedy = "use 'millrace bench diffusion'"});
}

}  // namespace mr::cli
