// Cuts a text into the words that byte-level BPE merges within. Each kind is one published regular
// expression, written out by hand: every cut takes time linear in the word it finds.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mr::text {

enum class PreTokenizer { gpt2, llama3, qwen2 };

// The end of the word that starts at `pos`; pos < text.size().
std::size_t word_end(PreTokenizer kind, std::string_view text, std::size_t pos);

// By GGUF's name (`tokenizer.ggml.pre`), and by the regular expression in a tokenizer.json.
std::optional<PreTokenizer> pre_tokenizer_of_name(std::string_view name);
std::optional<PreTokenizer> pre_tokenizer_of_regex(std::string_view regex);
std::string_view pre_tokenizer_name(PreTokenizer kind);  // GGUF's
std::string pre_tokenizer_regex(PreTokenizer kind);
inline constexpr const char* kSupportedPreTokenizers =
    "gpt-2 (also of GPT-NeoX), llama-bpe (Llama-3) and qwen2";

}  // namespace mr::text
