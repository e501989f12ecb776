#include "lab/story/floor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lab/story/storybook.h"
#include "text/tokenizer.h"

namespace mr::story {

std::optional<Floor> floor_of(const train::Shards& split, std::int32_t end_token,
                              const text::Tokenizer& tokenizer, std::uint64_t most) {
    constexpr std::uint64_t kPiece = 1 << 14;       // tokens that are read at once
    constexpr std::size_t kLongestStory = 1 << 12;  // tokens: longer ones are not stories
    Floor floor;
    std::uint64_t tokens = 0;
    double nats = 0;
    std::vector<std::int32_t> piece, story;
    for (std::uint64_t at = 0; at < split.tokens() && floor.stories < most;) {
        piece.resize(std::min(kPiece, split.tokens() - at));
        split.read(at, piece);
        at += piece.size();
        for (const std::int32_t id : piece) {
            if (id != end_token) {
                story.push_back(id);
                if (story.size() > kLongestStory) return std::nullopt;
                continue;
            }
            if (story.empty()) continue;  // the end token at the beginning
            std::string text = tokenizer.decode(story, true);
            text.erase(text.find_last_not_of(" \n") + 1);
            text.erase(0, text.find_first_not_of(" \n"));
            const Grammar::Reading reading = Storybook::grammar().read(text);
            if (reading.derivations == 0) return std::nullopt;
            nats += reading.nats;
            tokens += story.size() + 1;
            story.clear();
            if (++floor.stories == most) break;
        }
    }
    if (floor.stories == 0) return std::nullopt;
    floor.nats_per_story = nats / static_cast<double>(floor.stories);
    floor.nats_per_token = nats / static_cast<double>(tokens);
    floor.entropy_nats = Storybook::entropy_nats();
    return floor;
}

std::optional<Distance> distance_of(std::span<const std::string_view> stories,
                                    std::span<const double> nats) {
    if (stories.empty() || stories.size() != nats.size()) return std::nullopt;
    Distance out;
    double squares = 0;
    for (std::size_t i = 0; i < stories.size(); ++i) {
        const Grammar::Reading reading = Storybook::grammar().read(stories[i]);
        if (reading.derivations == 0) return std::nullopt;
        const double above = nats[i] - reading.nats;
        out.own += reading.nats;
        out.above += above;
        squares += above * above;
    }
    const auto count = static_cast<double>(stories.size());
    out.own /= count;
    out.above /= count;
    const double variance = squares / count - out.above * out.above;
    out.error = count > 1 ? std::sqrt(std::max(0.0, variance) / (count - 1)) : 0;
    out.entropy = Storybook::entropy_nats();
    return out;
}

}  // namespace mr::story
