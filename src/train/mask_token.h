// Finds or adds the mask token of a tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace mr::train {

struct MaskToken {
    std::int32_t id = 0;
    // With the mask token; the given one if it has it already.
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::string json;  // its tokenizer.json
};
// The tokenizer's mask token under one of its usual names (<|mask|>, <|MASK|>, [MASK], <mask>), or
// <|mask|> added after all other tokens, as a special one. `json` is the tokenizer.json it was read
// from.
MaskToken mask_token(std::shared_ptr<const text::Tokenizer> tokenizer, const std::string& json);

}  // namespace mr::train
