// What files say of models that fill in tokens: SDAR, Fast-dLLM v2, LLaDA and Dream.
#pragma once

#include <string>
#include <vector>

#include "formats/gguf.h"
#include "model/io/config_json.h"
#include "model/spec.h"

namespace mr::model {

struct DiffusionFamily {
    const char* family;  // of ModelSpec
    const char* like;    // the family that has the same layers: "qwen3", ...
    // The mask id that the published models have although their configurations may not name it: of
    // any vocabulary that has such an id. -1: configurations do name it.
    int mask;
    bool blocks;   // attention is block-causal; else full
    bool shifted;  // what config.json means; GGUF says it
};
// Null where tokens come one after another.
const DiffusionFamily* diffusion_family(const std::string& family);
// The family whose layers a family has: itself, or DiffusionFamily::like.
std::string layers_like(const std::string& family);

// The mask id and the blocks of config.json, for the four families; spec.vocab is there. Throws
// Error naming the field where one is missing. What was taken in its place goes to `notes`.
void read_diffusion(const Config& config, ModelSpec& spec, std::vector<std::string>& notes);
// LLaDA's configuration, which has names of its own.
ModelSpec read_llada(const Config& config, ModelSpec spec, std::vector<std::string>& notes);
// Of a GGUF file: llama.cpp's keys, and ours under "<arch>.diffusion.".
void read_diffusion(const formats::GgufFile& file, const std::string& arch, ModelSpec& spec);

}  // namespace mr::model
