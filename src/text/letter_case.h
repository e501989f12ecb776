// Upper and lower case of single characters, by Unicode's full mappings: U+00DF becomes "SS".
// Neighbouring characters are not considered.
#pragma once

#include <string>

namespace mr::text {

void append_upper(std::string& out, char32_t code);
void append_lower(std::string& out, char32_t code);
void append_title(std::string& out, char32_t code);
// Whether the character has another case, or is itself a case of another character.
bool has_case(char32_t code);

}  // namespace mr::text
