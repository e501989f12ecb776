// The token that stands for an unknown one, of a tokenizer that may not have it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace mr::train {

struct MaskToken {
    std::int32_t id = 0;
    // With the token: the one that was given where it has it already.
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::string json;  // its tokenizer.json
};
// A token that the tokenizer has under one of its usual names (<|mask|>, <|MASK|>, [MASK], <mask>),
// or <|mask|> behind all others, a special one. `json` is the tokenizer.json it was read from.
MaskToken mask_token(std::shared_ptr<const text::Tokenizer> tokenizer, const std::string& json);

}  // namespace mr::train
