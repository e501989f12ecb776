// A prompt as token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace mr::decode {

// The tokenizer of the model. Throws Error (input) where it has none.
const text::Tokenizer& require_tokenizer(const model::Model& model);

// Encodes any bytes. An empty text is a valid prompt: the model starts from its beginning-of-text
// token, or from end-of-text if it has only that. Throws Error (input) if it has neither.
std::vector<std::int32_t> encode_prompt(const model::Model& model, std::string_view text);

// Whether the answer begins a text: the prompt is only the beginning-of-text token.
bool begins_text(const text::Tokenizer& tokenizer, std::span<const std::int32_t> prompt);

}  // namespace mr::decode
