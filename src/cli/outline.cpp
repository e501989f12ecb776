#include "cli/outline.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>

namespace mr::cli {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

}  // namespace

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

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
    std::string found;
    std::size_t best = std::max<std::size_t>(2, word.size() / 3) + 1;
    for (const std::string& known : words) {
        const std::size_t distance = edit_distance(word, known);
        if (distance < best) {
            best = distance;
            found = known;
        }
    }
    return found;
}

}  // namespace mr::cli
