// Upper and lower case of single characters, by Unicode's full mappings: U+00DF becomes "SS". No
// rule looks at the neighbours.
#pragma once

#include <string>

namespace mr::text {

void append_upper(std::string& out, char32_t code);
void append_lower(std::string& out, char32_t code);
void append_title(std::string& out, char32_t code);
// Whether it is a letter that has another case, or is one of the cases of another.
bool has_case(char32_t code);

}  // namespace mr::text
