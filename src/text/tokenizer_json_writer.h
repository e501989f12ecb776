// A tokenizer as Hugging Face's tokenizer.json, which our own reader and theirs load.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_data.h"

namespace mr::text {

// Throws Error (input) for a SentencePiece tokenizer, or a token that is not UTF-8.
std::string tokenizer_json(const TokenizerData& data);
// The tokenizer.json `json`, which `data` was read from, with the tokens around a text that `data`
// has now: another post-processor, and all else as it was.
std::string with_tokens_around(std::string_view json, const TokenizerData& data);
// The tokenizer.json `json`, which `data` was read from, with one more added token, and all else as
// it was.
std::string with_added_token(std::string_view json, const TokenizerData& data,
                             const AddedToken& token);
// What goes into tokenizer_config.json beside it: the class that loads it, and the special tokens.
std::string tokenizer_config_json(const TokenizerData& data);

}  // namespace mr::text
