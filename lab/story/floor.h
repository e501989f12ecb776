// The lower bound of a story model's loss: if packed data comes from the storybook, its exact
// probability is known, and no model can be better on average.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "train/shards.h"

namespace mr::story {

struct Floor {
    std::uint64_t stories = 0;  // number read
    double nats_per_story = 0;  // mean of -ln P of these stories
    double nats_per_token = 0;  // ... per token, end tokens included: the bound of a loss
    double entropy_nats = 0;    // of a story, exact (Storybook::entropy_nats)
};

// Reads the first stories of a split back by the grammar, at most `most`. None if one of them is
// not from the storybook, or there are none.
std::optional<Floor> floor_of(const train::Shards& split, std::int32_t end_token,
                              const text::Tokenizer& tokenizer, std::uint64_t most = 2000);

// A model's distance from the storybook: its mean nats for a story above the story's own -ln P. A
// perfect model has 0, and none has less on average.
struct Distance {
    double own = 0;      // mean -ln P of the stories themselves
    double above = 0;    // nats per story
    double error = 0;    // standard error of that
    double entropy = 0;  // of a story, exact
};

// nats[i]: the model's nats for stories[i] and its end. None if one is not from the storybook, or
// there are none.
std::optional<Distance> distance_of(std::span<const std::string_view> stories,
                                    std::span<const double> nats);

}  // namespace mr::story
