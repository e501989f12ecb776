// GPT-2's way of writing any byte as one printable character, so that vocabularies are text files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mr::text {

// The character that stands for `byte`: itself where it prints, otherwise one from U+0100 on.
char32_t byte_to_char(unsigned char byte);
// The bytes that `token` stands for; nothing where it has a character outside the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

// SentencePiece's way: the byte that "<0xNN>" names, or -1.
int byte_of_name(std::string_view token);

}  // namespace mr::text
