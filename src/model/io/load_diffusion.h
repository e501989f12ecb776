// Loads diffusion models' settings: SDAR, Fast-dLLM v2, LLaDA and Dream.
#pragma once

#include <string>
#include <vector>

#include "formats/gguf.h"
#include "model/io/config_json.h"
#include "model/spec.h"

namespace mr::model {

struct DiffusionFamily {
    const char* family;  // of ModelSpec
    const char* like;    // the family with the same layers: "qwen3", ...
    // The mask id of the published models, used where a configuration does not name one and the
    // vocabulary has such an id. -1: configurations always name it.
    int mask;
    bool blocks;   // attention is block-causal; else full
    bool shifted;  // for config.json; GGUF has a key for it
};
// Null for an autoregressive family.
const DiffusionFamily* diffusion_family(const std::string& family);
// The family with the same layers: itself, or DiffusionFamily::like.
std::string layers_like(const std::string& family);

// Reads the mask id and the blocks from config.json, for the four families; spec.vocab must be set.
// Throws Error naming the field if one is missing. Values assumed instead go to `notes`.
void read_diffusion(const Config& config, ModelSpec& spec, std::vector<std::string>& notes);
// LLaDA's configuration, which has its own key names.
ModelSpec read_llada(const Config& config, ModelSpec spec, std::vector<std::string>& notes);
// From a GGUF file: llama.cpp's keys, and our own under "<arch>.diffusion.".
void read_diffusion(const formats::GgufFile& file, const std::string& arch, ModelSpec& spec);

}  // namespace mr::model
