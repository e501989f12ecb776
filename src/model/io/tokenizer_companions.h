// The files of a Hugging Face tokenizer.
#pragma once

#include <filesystem>
#include <vector>

namespace mr::model {

inline constexpr const char* kTokenizerCompanions[] = {
    "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"};

// The files of these names beside tokenizer.json, which belong to it, as far as they are there:
// regular, and not empty. An empty one says nothing, and could not be read.
std::vector<std::filesystem::path> tokenizer_companions(const std::filesystem::path& folder);

}  // namespace mr::model
