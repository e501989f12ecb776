// Writes a model in memory as a Hugging Face folder, as training does.
#pragma once

#include <functional>
#include <string>

#include "model/io/source.h"
#include "model/model.h"

namespace mr::model {

// Writes config.json, model.safetensors and, with a tokenizer, tokenizer_config.json into the
// existing `folder`, in the names and layout of the family, so that transformers and load_model()
// read them. The matrices are f32, and in host memory. Each file appears whole or not at all.
// `progress` is called between parts of the data. Throws Error if the family's configuration cannot
// express the spec.
void write_huggingface(const std::string& folder, const ModelSpec& spec, const Weights& weights,
                       const text::Tokenizer* tokenizer,
                       const std::function<void()>& progress = {});

// The same with tensors that are read when they are written: one at a time, or three if a file has
// q, k and v in one.
void write_huggingface(const std::string& folder, const ModelSpec& spec,
                       std::function<RoleTensor(RoleAt)> read, const text::Tokenizer* tokenizer,
                       const std::function<void()>& progress = {});

// Throws only that Error, for a check before the work.
void require_huggingface_can_hold(const ModelSpec& spec, const std::string& file);

}  // namespace mr::model
