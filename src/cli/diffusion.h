// Options of diffusion models: --block, --steps, --remask, --threshold, ...
#pragma once

#include <string>

#include "cli/parser.h"
#include "decode/generate.h"
#include "model/engine.h"

namespace mr::cli {

struct DiffusionChoice {
    decode::DiffusionOptions options;
    std::string remask = "dynamic";
    std::string confidence = "max";
    bool show = false;  // --show-denoising
};

// `shows`: with --show-denoising.
void add_diffusion_options(const Command& command, DiffusionChoice& choice, bool shows = true);
// Applies the choice to a generation and its engine. Throws Error (usage) if such an option is
// given for an autoregressive model, and for invalid values.
void use_diffusion(const Command& command, const DiffusionChoice& choice,
                   const model::ModelSpec& spec, model::EngineOptions& engine,
                   decode::GenerateOptions& generate);

// One line on standard error if --block is larger than the model's: it was not trained for that.
void note_block(const DiffusionChoice& choice, const model::ModelSpec& spec);

// Throws Error (usage) for a diffusion model: `command` needs an autoregressive one.
void refuse_diffusion(const model::Model& model, const char* command);

}  // namespace mr::cli
