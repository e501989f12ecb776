// What the two output formats say about a model besides its tensors. Internal to convert.cpp.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf_writer.h"
#include "model/spec.h"
#include "text/tokenizer.h"

namespace mr::model {

// What of a layer neither format has words for (TakesLayer).
std::string formats_take(const LayerSpec& layer, const LayerSpec& common);

// Throws Error where the spec's family is not one that fills in tokens as the spec says.
void require_diffusion_can_be_held(const ModelSpec& spec, const std::string& file);

// The window of the layers that slide, 0 where none does.
struct Windows {
    int window = 0;
    std::vector<bool> slides;  // [layers]
    bool all() const { return std::find(slides.begin(), slides.end(), false) == slides.end(); }
};
// Throws Error naming `file` where layers slide by different windows or are not taken.
Windows windows_of(const ModelSpec& spec, const std::string& file);

// "llama" for Llama and Mistral, "gptneox" for GPT-NeoX, ...
std::string gguf_architecture(const ModelSpec& spec);

// Throws Error where GGUF has no way to say what this spec says, naming `file`.
void require_gguf_can_hold(const ModelSpec& spec, const std::string& file);

// What llama.cpp does with such a file that we do not, a sentence each.
std::vector<std::string> llama_cpp_differences(const ModelSpec& spec);

// All keys; `type` is that of most matrices.
void write_gguf_metadata(formats::GgufWriter& writer, const ModelSpec& spec,
                         const text::Tokenizer* tokenizer, DType type);

// Divisors of the rotary frequencies where the scaling is not one that GGUF has a name for; empty
// where it needs none.
std::vector<float> gguf_frequency_factors(const RopeSpec& rope);

// config.json of the family, as transformers reads it. Throws Error naming `file` where its
// configuration has no way to say what this spec says.
std::string huggingface_config(const ModelSpec& spec, const text::Tokenizer* tokenizer, DType type,
                               const std::string& file);

// tokenizer.json and tokenizer_config.json beside a model of a family; none where they cannot say
// what `data` says.
struct TokenizerFiles {
    std::string tokenizer;
    std::string config;
};
std::optional<TokenizerFiles> huggingface_tokenizer(const text::TokenizerData& data,
                                                    const std::string& family);

}  // namespace mr::model
