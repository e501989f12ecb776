// "Did you mean ...?" for a misspelt word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr {

// The nearest of `words` by edit distance; empty if none is near. Takes the product of both lengths
// for each of them: not for words of any length that a stranger sends.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

}  // namespace mr
