// Writes a tokenizer as Hugging Face's tokenizer.json, which both their reader and ours can load.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer_data.h"

namespace mr::text {

// Throws Error (input) for a SentencePiece tokenizer, or a token that is not UTF-8.
std::string tokenizer_json(const TokenizerData& data);
// Returns the tokenizer.json `json`, which `data` was read from, with the prefix and suffix that
// `data` has now: only the post-processor is replaced.
std::string with_tokens_around(std::string_view json, const TokenizerData& data);
// Returns the tokenizer.json `json`, which `data` was read from, with one more added token and
// nothing else changed.
std::string with_added_token(std::string_view json, const TokenizerData& data,
                             const AddedToken& token);
// The tokenizer_config.json for it: the class that loads it, and the special tokens.
std::string tokenizer_config_json(const TokenizerData& data);

}  // namespace mr::text
