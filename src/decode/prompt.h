// A prompt as token ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace mr::decode {

// The tokenizer of the model. Throws Error (input) where it has none.
const text::Tokenizer& require_tokenizer(const model::Model& model);

// Encodes any bytes. An empty text is a valid prompt: the model starts from its beginning-of-text
// token, or from end-of-text if it has only that. Throws Error (input) if it has neither.
std::vector<std::int32_t> encode_prompt(const model::Model& model, std::string_view text);

}  // namespace mr::decode
