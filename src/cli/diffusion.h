// Options of models that fill in tokens: --block, --steps, --remask, --threshold, ...
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cli/parser.h"
#include "decode/generate.h"
#include "model/engine.h"

namespace mr::text {
class Tokenizer;
}

namespace mr::cli {

struct DiffusionChoice {
    decode::DiffusionOptions options;
    std::string remask = "dynamic";
    std::string confidence = "max";
    bool show = false;  // --show-denoising
};

// `shows`: with --show-denoising.
void add_diffusion_options(const Command& command, DiffusionChoice& choice, bool shows = true);
// Puts what was chosen into a generation and its engine. Throws Error (usage) where the model takes
// tokens one after another and such an option was given, and for what no model takes.
void use_diffusion(const Command& command, const DiffusionChoice& choice,
                   const model::ModelSpec& spec, model::EngineOptions& engine,
                   decode::GenerateOptions& generate);

// Throws Error (usage) where the model fills in tokens: `command` makes them one after another.
void refuse_diffusion(const model::Model& model, const char* command);

// The open block on the terminal, behind the text, as it clears up.
class DenoisingView {
  public:
    explicit DenoisingView(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void show(std::span<const std::int32_t> block, std::span<const std::uint8_t> known);
    void remove();  // before the text goes on

  private:
    const text::Tokenizer& tokenizer_;
    bool drawn_ = false;
};

}  // namespace mr::cli
