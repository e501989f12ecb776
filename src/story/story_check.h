// Is a text a story of the storybook's kind? Two answers, which differ: whether the grammar could
// have written it word for word, and whether it is well-formed, which a story in other words can be
// as well. Well-formed means that it holds together:
//   - it is whole: paragraphs that end, quotes that close
//   - it has one hero throughout, who keeps name and pronouns; nobody turns up who was not named
//   - who gives advice has come by before
//   - there is a wish, and what happens in the end is what resolves that wish
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
    no_hero,     // nobody is named in the beginning
    hero_lost,   // the hero does not come again
    stranger,    // a name that was never introduced
    pronoun,     // the hero is "he" here and "she" there
    helper,      // advice from one who never came
    no_wish,     // nothing is wished for, feared, lost or broken
    unresolved,  // what was wished for does not come about
    mixed_up,    // the ending belongs to another wish
    kCount,
};
const char* story_fault_name(StoryFault fault);  // "hero lost"

struct StoryProblem {
    StoryFault fault;
    std::string what;  // a sentence's worth, with the words in question
};

struct StoryVerdict {
    std::string hero;                    // empty where there is none
    std::string plot;                    // "learn", "lost", ...; empty where no known wish
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
    double mean_nats = 0;  // of those by the grammar
    std::array<std::uint64_t, static_cast<std::size_t>(StoryFault::kCount)> faults{};
    struct Bad {
        std::uint64_t index = 0;  // of the story, from 0
        std::vector<StoryProblem> problems;
    };
    std::vector<Bad> bad;  // the first `most_bad`
};

// The stories of a text, cut at kStorySeparator; blank ones do not count.
std::vector<std::string_view> split_stories(std::string_view text);
StoryCensus check_stories(
    const std::vector<std::string_view>& stories, std::size_t most_bad = 1000,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

}  // namespace mr::story
