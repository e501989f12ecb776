#include "core/nearest.h"

#include <algorithm>
#include <cstddef>

namespace mr {
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

}  // namespace mr
