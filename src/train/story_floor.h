// The floor under the loss of a model of stories: where packed data is the storybook's, its exact
// probability is known, and no model can be better in the mean.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "train/shards.h"

namespace mr::train {

struct StoryFloor {
    std::uint64_t stories = 0;  // that were read
    double nats_per_story = 0;  // mean of -ln P of these very stories
    double nats_per_token = 0;  // ... of their tokens, end tokens included: what a loss is held to
    double entropy_nats = 0;    // of a story, exact (Storybook::entropy_nats)
};

// Reads the first stories of a split back by the grammar, at most `most`. None where one of them is
// not the storybook's, or there is none.
std::optional<StoryFloor> story_floor(const Shards& split, std::int32_t end_token,
                                      const text::Tokenizer& tokenizer, std::uint64_t most = 2000);

// How far a model is from the storybook: the mean of what it pays for a story above the story's own
// -ln P. A perfect model has 0, and none has less in the mean.
struct StoryDistance {
    double own = 0;      // the stories' own -ln P, in the mean
    double above = 0;    // nats a story
    double error = 0;    // standard error of that
    double entropy = 0;  // of a story, exact
};

// nats[i]: what the model pays for stories[i] and its end. None where one is not the storybook's,
// or there is none.
std::optional<StoryDistance> story_distance(std::span<const std::string_view> stories,
                                            std::span<const double> nats);

}  // namespace mr::train
