// The lower bound of a loss: known if packed data comes from the storybook, and only then.
#include "lab/story/floor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lab/story/storybook.h"
#include "text/tokenizer.h"

namespace mr::story {
namespace {

// Texts as a split of bytes, with an end token before and after each.
struct Packed {
    static constexpr std::int32_t kEnd = 256;

    explicit Packed(const std::vector<std::string>& texts) {
        std::vector<std::uint16_t> ids = {kEnd};
        for (const std::string& text : texts) {
            for (const std::int32_t id : tokenizer->encode(text)) {
                ids.push_back(static_cast<std::uint16_t>(id));
            }
            ids.push_back(kEnd);
        }
        tokens = ids.size();
        train::ShardHeader header{.vocab = 257, .tokens = ids.size()};
        header.checksum = fnv1a(std::as_bytes(std::span(ids)));
        const std::string head = train::shard_header_bytes(header);
        bytes.resize(head.size() + 2 * ids.size());
        std::memcpy(bytes.data(), head.data(), head.size());
        std::memcpy(bytes.data() + head.size(), ids.data(), 2 * ids.size());
        std::vector<train::Shard> shards;
        shards.push_back(train::Shard::parse(bytes, "test"));
        split = train::Shards(std::move(shards), {.documents = texts.size(), .tokens = tokens});
    }
    std::optional<Floor> floor(std::uint64_t most = 2000) const {
        return floor_of(split, kEnd, *tokenizer, most);
    }

    text::Tokenizer::Ptr tokenizer = text::Tokenizer::bytes(257);
    std::vector<std::byte> bytes;
    std::size_t tokens = 0;
    train::Shards split;
};

TEST(StoryFloor, IsTheirProbability) {
    const Storybook book(3);
    std::vector<std::string> texts;
    double nats = 0;
    for (std::uint64_t i = 0; i < 20; ++i) {
        texts.push_back(book.story(i).text);
        texts.back().append("\n").insert(0, 1, '\n');
        nats += book.story(i).nats;
    }
    const Packed packed(texts);
    const auto floor = packed.floor();
    ASSERT_TRUE(floor);
    EXPECT_EQ(floor->stories, 20u);
    EXPECT_NEAR(floor->nats_per_story, nats / 20, 1e-9);
    // Each story has its end token; the one at the beginning belongs to none.
    EXPECT_NEAR(floor->nats_per_token, nats / static_cast<double>(packed.tokens - 1), 1e-9);
    EXPECT_EQ(floor->entropy_nats, Storybook::entropy_nats());
    EXPECT_EQ(packed.floor(5)->stories, 5u);
}

TEST(StoryFloor, IsNotThereForOtherTexts) {
    const std::string story = Storybook(3).story(0).text;
    EXPECT_FALSE(Packed({story, std::string(story).append(" And more.")}).floor());
    EXPECT_FALSE(Packed({}).floor());
    EXPECT_FALSE(Packed({std::string(5000, 'a')}).floor());
}

TEST(StoryDistance, IsWhatAModelPaysMore) {
    const Storybook book(5);
    std::vector<std::string> texts;
    std::vector<double> nats;
    const double above[] = {0.5, 1.5, 4.0};
    double own = 0;
    for (std::uint64_t i = 0; i < 3; ++i) {
        const auto story = book.story(i);
        texts.push_back(story.text);
        nats.push_back(story.nats + above[i]);
        own += story.nats / 3;
    }
    std::vector<std::string_view> stories(texts.begin(), texts.end());
    const auto found = distance_of(stories, nats);
    ASSERT_TRUE(found);
    EXPECT_NEAR(found->own, own, 1e-9);
    EXPECT_NEAR(found->above, 2.0, 1e-9);
    // Squares of 1.5, 0.5 and 2 from the mean: a variance of 6.5 / 2, over three stories.
    EXPECT_NEAR(found->error, std::sqrt(6.5 / 2 / 3), 1e-9);
    EXPECT_EQ(found->entropy, Storybook::entropy_nats());
    stories[1] = "Once upon a time there was a cat.";
    EXPECT_FALSE(distance_of(stories, nats));
    EXPECT_FALSE(distance_of({}, {}));
}

}  // namespace
}  // namespace mr::story
