// A model in memory as a Hugging Face folder: what training writes.
#pragma once

#include <functional>
#include <string>

#include "model/io/source.h"
#include "model/model.h"

namespace mr::model {

// Writes config.json, model.safetensors and, with a tokenizer, tokenizer_config.json into `folder`,
// which is there, in the names and layout of the family, so that transformers and load_model() read
// them. The matrices are f32, and in host memory. Each file appears whole or not at all. `progress`
// is called between parts of the data. Throws Error where the family's configuration cannot say
// what the spec says.
void write_huggingface(const std::string& folder, const ModelSpec& spec, const Weights& weights,
                       const text::Tokenizer* tokenizer,
                       const std::function<void()>& progress = {});

// The same of tensors that are read when they are written, one or, where a file has q, k and v in
// one, three at a time.
void write_huggingface(const std::string& folder, const ModelSpec& spec,
                       std::function<RoleTensor(RoleAt)> read, const text::Tokenizer* tokenizer,
                       const std::function<void()>& progress = {});

// Throws that Error alone, so that it comes before the work.
void require_huggingface_can_hold(const ModelSpec& spec, const std::string& file);

}  // namespace mr::model
