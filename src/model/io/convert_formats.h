// The metadata of the two output formats. Internal to convert.cpp.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "formats/gguf_writer.h"
#include "model/spec.h"
#include "text/tokenizer.h"

namespace mr::model {

// Which property of a layer neither format can express; empty if none (TakesLayer).
std::string formats_take(const LayerSpec& layer, const LayerSpec& common);

// Throws Error if the spec's family does not support the spec's diffusion settings.
void require_diffusion_can_be_held(const ModelSpec& spec, const std::string& file);

// The window of the sliding layers, 0 if there are none.
struct Windows {
    int window = 0;
    std::vector<bool> slides;  // [layers]
    bool all() const { return std::find(slides.begin(), slides.end(), false) == slides.end(); }
};
// Throws Error naming `file` if layers have different windows or are not supported.
Windows windows_of(const ModelSpec& spec, const std::string& file);

// "llama" for Llama and Mistral, "gptneox" for GPT-NeoX, ...
std::string gguf_architecture(const ModelSpec& spec);

// Throws Error naming `file` if GGUF cannot express this spec.
void require_gguf_can_hold(const ModelSpec& spec, const std::string& file);

// How llama.cpp treats such a file differently, one sentence each.
std::vector<std::string> llama_cpp_differences(const ModelSpec& spec);

// Writes all keys; `type` is that of most matrices.
void write_gguf_metadata(formats::GgufWriter& writer, const ModelSpec& spec,
                         const text::Tokenizer* tokenizer, DType type);

// Divisors of the rotary frequencies, if GGUF has no name for the scaling; otherwise
// empty.
std::vector<float> gguf_frequency_factors(const RopeSpec& rope);

// config.json of the family, as transformers reads it. Throws Error naming `file` if it cannot
// express this spec.
std::string huggingface_config(const ModelSpec& spec, const text::Tokenizer* tokenizer, DType type,
                               const std::string& file);

}  // namespace mr::model
