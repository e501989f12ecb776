#include "cli/outline.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>

namespace mr::cli {

std::vector<std::string> OptionOutline::names() const {
    std::vector<std::string> all = shorts;
    all.insert(all.end(), longs.begin(), longs.end());
    return all;
}

std::vector<std::string> OptionOutline::words() const {
    std::vector<std::string> found;
    if (value.find('|') == std::string::npos) {
        const bool word = !value.empty() && std::islower(static_cast<unsigned char>(value[0]));
        if (word) found.push_back(value);
        return found;
    }
    for (std::size_t at = 0; at <= value.size();) {
        const std::size_t end = std::min(value.find('|', at), value.size());
        found.push_back(value.substr(at, end - at));
        at = end + 1;
    }
    std::erase(found, "N");  // N|auto
    return found;
}

bool OptionOutline::takes_path() const {
    constexpr std::string_view kPaths[] = {"FILE", "FOLDER", "PATH", "MODEL", "RUN", "IN", "OUT"};
    const std::string_view what = positional.empty() ? value : positional;
    return std::find(std::begin(kPaths), std::end(kPaths), what) != std::end(kPaths);
}

}  // namespace mr::cli
