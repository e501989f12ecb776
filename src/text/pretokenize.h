// Splits a text into words, within which byte-level BPE merges. Each kind is one published regular
// expression, implemented by hand: finding a word takes time linear in its length.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mr::text {

enum class PreTokenizer { gpt2, llama3, qwen2 };

// The end of the word that starts at `pos`; pos < text.size().
std::size_t word_end(PreTokenizer kind, std::string_view text, std::size_t pos);

// Finds a kind by GGUF's name (`tokenizer.ggml.pre`), or by a tokenizer.json's regular expression.
std::optional<PreTokenizer> pre_tokenizer_of_name(std::string_view name);
std::optional<PreTokenizer> pre_tokenizer_of_regex(std::string_view regex);
std::string_view pre_tokenizer_name(PreTokenizer kind);  // GGUF's name
std::string pre_tokenizer_regex(PreTokenizer kind);
inline constexpr const char* kSupportedPreTokenizers =
    "gpt-2 (also of GPT-NeoX), llama-bpe (Llama-3) and qwen2";

}  // namespace mr::text
