// Whether a text is a story of the storybook's kind. There are two answers: whether the grammar
// could have written it word for word, and whether it is well-formed, as a story in other words can
// be, too. Well-formed means:
//   - it is complete: paragraphs end, quotes close
//   - it has one hero, with one name and one pronoun; every name is introduced
//   - a character who gives advice has appeared before
//   - there is a wish, and the ending resolves that wish
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mr::story {

enum class StoryFault : std::uint8_t {
    unfinished,  // too short, cut off, or a quote that never closes
    repeats,     // a paragraph twice, or a sentence three times
    no_hero,     // no name in the beginning
    hero_lost,   // the hero does not appear again
    stranger,    // a name that was never introduced
    pronoun,     // the hero is "he" here and "she" there
    helper,      // advice from a character who never appeared
    no_wish,     // nothing is wished for, feared, lost or broken
    unresolved,  // the wish is not fulfilled
    mixed_up,    // the ending belongs to another wish
    kCount,
};
const char* story_fault_name(StoryFault fault);  // "hero lost"

struct StoryProblem {
    StoryFault fault;
    std::string what;  // one sentence, with the words in question
};

struct StoryVerdict {
    std::string hero;                    // empty if there is none
    std::string plot;                    // "learn", "lost", ...; empty if unknown
    std::vector<StoryProblem> problems;  // empty: well-formed
    bool by_grammar = false;             // Grammar::read finds it
    double nats = 0;                     // -ln P where by_grammar

    bool well_formed() const { return problems.empty(); }
};

StoryVerdict check_story(std::string_view text);

struct StoryCensus {
    std::uint64_t stories = 0;
    std::uint64_t well_formed = 0;
    std::uint64_t by_grammar = 0;
    double mean_nats = 0;  // of the stories of the grammar
    std::array<std::uint64_t, static_cast<std::size_t>(StoryFault::kCount)> faults{};
    struct Bad {
        std::uint64_t index = 0;  // of the story, from 0
        std::vector<StoryProblem> problems;
    };
    std::vector<Bad> bad;  // the first `most_bad`
};

// The stories of a text, cut at text::kEndOfText; blank ones are dropped.
std::vector<std::string_view> split_stories(std::string_view text);
StoryCensus check_stories(
    const std::vector<std::string_view>& stories, std::size_t most_bad = 1000,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

}  // namespace mr::story
