// What a model's files say about generation: end tokens and recommended sampling
// parameters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace mr::model {

struct Generation {
    static constexpr int kWholeText = std::numeric_limits<int>::max();

    std::vector<std::int32_t> ends;  // besides those of the tokenizer
    // None: the files say nothing. A temperature of 0 is greedy.
    std::optional<float> temperature, top_p, min_p, repeat_penalty;
    std::optional<std::int32_t> top_k;
    std::optional<int> repeat_window;  // tokens that the penalty looks at

    bool ends_at(std::int32_t token) const {
        return std::find(ends.begin(), ends.end(), token) != ends.end();
    }
    bool says_sampling() const {
        return temperature || top_p || min_p || repeat_penalty || top_k || repeat_window;
    }
    bool operator==(const Generation&) const = default;
};

}  // namespace mr::model
