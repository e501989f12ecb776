// Reads and writes the generation settings of files (model/generation.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "formats/json.h"
#include "model/generation.h"

namespace mr::model {

// eos_token_id of config.json, and generation_config.json if the folder has one. Ids outside the
// vocabulary are left out: they are never drawn. Settings of generation_config.json that are not
// obeyed go to `notes`. Throws Error naming file and field for values that are not numbers or out
// of range.
Generation huggingface_generation(const std::string& folder, formats::JsonValue config,
                                  const std::string& config_file, int vocab,
                                  std::vector<std::string>& notes);
// llama.cpp's keys (tokenizer.ggml.eom_token_id, general.sampling.*), and our own for further end
// tokens.
Generation gguf_generation(const formats::GgufFile& file, int vocab);

// Writes the keys that gguf_generation() reads.
void write_generation(formats::GgufWriter& writer, const Generation& generation);
// generation_config.json; `more`: the tokenizer's end tokens, which transformers expects there.
std::string generation_config(const Generation& generation, std::span<const std::int32_t> more);

}  // namespace mr::model
