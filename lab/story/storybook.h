// The storybook: short children's stories in which every choice has a known probability, so that a
// model trained on them can be compared with the exact entropy of its text.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "lab/story/grammar.h"
#include "text/documents.h"

namespace mr::story {

class Storybook {
  public:
    explicit Storybook(uint64_t seed) : seed_(seed) {}

    struct Story {
        std::string text;  // paragraphs separated by '\n', plain ASCII, no newline at the end
        double nats = 0;   // -ln P(text)
    };

    // Story `index` depends only on (seed, index): not on how many are made, nor on the platform.
    Story story(uint64_t index) const;

    // Entropy of one story, in nats; computed from the grammar, exact up to rounding.
    static double entropy_nats();

    static const Grammar& grammar();

  private:
    uint64_t seed_;
};

struct StorybookStats {
    uint64_t stories = 0;
    uint64_t bytes = 0;
    double entropy_nats = 0;  // exact, per story
    double mean_nats = 0;     // mean of -ln P over the stories written
};

// Called from time to time with the number of stories written so far.
using StorybookProgress = std::function<void(uint64_t done, uint64_t total)>;

// Writes stories first .. first + stories - 1, each followed by a newline, text::kEndOfText and a
// newline. Stops early if the stream fails: the caller must check its state.
StorybookStats write_storybook(std::ostream& out, uint64_t stories, uint64_t seed,
                               const StorybookProgress& progress = {}, uint64_t first = 0);

}  // namespace mr::story
