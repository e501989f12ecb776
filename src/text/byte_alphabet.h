// GPT-2's mapping of every byte to a printable character, which makes vocabularies text files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mr::text {

// The character for `byte`: the byte itself if printable, otherwise one from U+0100 on.
char32_t byte_to_char(unsigned char byte);
// The bytes of `token`; empty if it has a character outside the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

// SentencePiece's form: the byte that "<0xNN>" names, or -1.
int byte_of_name(std::string_view token);

}  // namespace mr::text
