#include "lab/story/storybook.h"

#include <ostream>

#include "lab/story/storybook_content.h"

namespace mr::story {

const Grammar& Storybook::grammar() {
    static const Grammar grammar = [] {
        std::string source;
        for (const std::string_view part :
             {kStorybookPeople, kStorybookPlaces, kStorybookPhrases, kStorybookPlotsOfTrying,
              kStorybookPlotsOfThings, kStorybookPlotsOfFriends})
            source.append(part).push_back('\n');
        return Grammar(source, "story");
    }();
    return grammar;
}

Storybook::Story Storybook::story(uint64_t index) const {
    Story story;
    Dice dice(seed_, index);
    story.nats = grammar().derive(dice, story.text);
    return story;
}

double Storybook::entropy_nats() {
    static const double nats = grammar().entropy_nats();
    return nats;
}

StorybookStats write_storybook(std::ostream& out, uint64_t stories, uint64_t seed,
                               const StorybookProgress& progress, uint64_t first) {
    constexpr uint64_t kProgressEvery = 4096;  // stories
    constexpr size_t kBuffer = 1 << 20;        // bytes
    const Grammar& grammar = Storybook::grammar();
    StorybookStats stats;
    stats.entropy_nats = Storybook::entropy_nats();
    double nats = 0;
    std::string buffer;
    for (uint64_t i = 0; i < stories; ++i) {
        Dice dice(seed, first + i);
        nats += grammar.derive(dice, buffer);
        buffer.append("\n").append(text::kEndOfText).append("\n");
        ++stats.stories;
        if (buffer.size() >= kBuffer || i + 1 == stories) {
            stats.bytes += buffer.size();
            out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
            buffer.clear();
            if (!out) break;
        }
        if (progress && (stats.stories % kProgressEvery == 0 || stats.stories == stories))
            progress(stats.stories, stories);
    }
    if (stats.stories > 0) stats.mean_nats = nats / static_cast<double>(stats.stories);
    return stats;
}

}  // namespace mr::story
