// Writes a tokenizer as Hugging Face's tokenizer.json, which both their reader and ours can load.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer_data.h"

namespace mr::text {

// tokenizer.json, and the tokenizer_config.json for it: the class that loads it, the special tokens
// and the chat templates.
struct TokenizerFiles {
    std::string tokenizer;
    std::string config;
};
// Returns nothing if these files cannot express `data`. `family` is that of the model it is for, if
// there is one: transformers reads the tokenizers of some families in a way of its own.
std::optional<TokenizerFiles> huggingface_tokenizer(const TokenizerData& data,
                                                    std::string_view family = {});

// Returns the tokenizer.json `json`, which `data` was read from, with the prefix and suffix that
// `data` has now: only the post-processor is replaced.
std::string with_tokens_around(std::string_view json, const TokenizerData& data);
// Returns the tokenizer.json `json`, which `data` was read from, with one more added token and
// nothing else changed.
std::string with_added_token(std::string_view json, const TokenizerData& data,
                             const AddedToken& token);

}  // namespace mr::text
