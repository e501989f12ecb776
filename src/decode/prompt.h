// A prompt as token ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace mr::decode {

// The tokenizer of the model. Throws Error (input) where it has none.
const text::Tokenizer& require_tokenizer(const model::Model& model);

// Any bytes. An empty text is a prompt too: the model starts from its beginning-of-text token, or
// from end-of-text where it has only that. Throws Error (input) where it has neither.
std::vector<std::int32_t> encode_prompt(const model::Model& model, std::string_view text);

}  // namespace mr::decode
