// The floor under the loss of a model of stories: where packed data is the storybook's, its exact
// probability is known, and no model can be better in the mean.
#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace mr::train
