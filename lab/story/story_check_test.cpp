// The story checker: all stories of the storybook are well-formed, other wordings may be, and each
// kind of fault is found with its reason.
#include "lab/story/story_check.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>

#include "lab/story/story_words.h"
#include "lab/story/storybook.h"

namespace mr::story {
namespace {

const std::string kOwl =
    "Once upon a time, in a busy little town, there lived a shy young girl named Mia. She had a "
    "puppy named Biscuit.\n"
    "More than anything, Mia wanted to fly a kite. On Monday she tried, but the kite dragged along "
    "the ground. On Tuesday she tried again, but the kite dove straight into a tree.\n"
    "\"It is no use,\" sighed Mia. Just then, a kind baker came by. \"What is the matter?\" asked "
    "the baker, and Mia told him everything. \"Here is a secret,\" said the baker. \"Wait for the "
    "wind, then run toward it and let out the string bit by bit.\"\n"
    "\"I will try,\" said Mia. The kite leaped up, higher than the rooftops, and danced among the "
    "clouds. \"Hooray!\" shouted Mia. Biscuit wagged and wagged. \"Thank you, kind baker!\" said "
    "Mia.\n"
    "From that day on, Mia flew the kite on every windy day.";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    EXPECT_NE(text.find(from), std::string::npos) << from;
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
        text.replace(at, from.size(), to);
    }
    return text;
}

std::string problems(const StoryVerdict& verdict) {
    std::string all;
    for (const StoryProblem& p : verdict.problems) {
        all += std::string(story_fault_name(p.fault)) + ": " + p.what + "\n";
    }
    return all;
}

// Exactly this fault.
void expect_fault(const std::string& story, StoryFault fault, const std::string& word) {
    const StoryVerdict verdict = check_story(story);
    ASSERT_EQ(verdict.problems.size(), 1u) << problems(verdict) << story;
    EXPECT_EQ(verdict.problems[0].fault, fault) << problems(verdict);
    EXPECT_NE(verdict.problems[0].what.find(word), std::string::npos) << problems(verdict);
    EXPECT_FALSE(verdict.by_grammar);
}

TEST(StoryCheck, TheStorybookIsWellFormed) {
    for (const std::uint64_t seed : {1, 2, 3}) {
        const Storybook book(seed);
        for (std::uint64_t i = 0; i < 250; ++i) {
            const std::string text = book.story(i).text;
            const StoryVerdict verdict = check_story(text);
            ASSERT_TRUE(verdict.well_formed()) << problems(verdict) << text;
            ASSERT_TRUE(verdict.by_grammar) << text;
            ASSERT_FALSE(verdict.plot.empty());
        }
    }
}

TEST(StoryCheck, OtherWordsCanBeWellFormed) {
    const StoryVerdict first = check_story(kOwl);
    EXPECT_TRUE(first.well_formed() && first.by_grammar) << problems(first);
    EXPECT_EQ(first.hero, "Mia");
    EXPECT_EQ(first.plot, "learn");

    std::string story = replaced(kOwl, "in a busy little town", "in a house made of old bricks");
    story = replaced(story, "Just then, a kind baker came by.", "A kind baker walked past.");
    story = replaced(story, "The kite leaped up, higher than the rooftops",
                     "The kite rose high over the rooftops");
    story = replaced(story, "Biscuit wagged and wagged.", "Biscuit ran after it, barking.");
    const StoryVerdict reworded = check_story(story);
    EXPECT_TRUE(reworded.well_formed()) << problems(reworded);
    EXPECT_FALSE(reworded.by_grammar);

    // A wish that is in no plot of the storybook.
    const StoryVerdict other = check_story(
        "There was a boy called Piet who lived on a boat.\n"
        "Piet wanted to hear the whole river sing. He listened at night, but it only mumbled.\n"
        "An old heron came by. \"Sing first,\" said the heron, \"and the river will answer.\"\n"
        "So Piet sang, and the river sang along, high and low. Piet laughed.\n"
        "From that day on, the river and Piet sang together every night.");
    EXPECT_TRUE(other.well_formed()) << problems(other);
    EXPECT_EQ(other.hero, "Piet");
}

TEST(StoryCheck, Unfinished) {
    expect_fault(kOwl.substr(0, kOwl.size() - 20), StoryFault::unfinished, "middle");
    expect_fault(replaced(kOwl, "\"Hooray!\"", "\"Hooray!"), StoryFault::unfinished, "speak");
    const StoryVerdict cut = check_story(kOwl.substr(0, kOwl.find("\"It is no use")));
    ASSERT_FALSE(cut.problems.empty());
    EXPECT_EQ(cut.problems[0].fault, StoryFault::unfinished);
    EXPECT_FALSE(check_story("").well_formed());
    EXPECT_FALSE(check_story("\xff\xfe\n\n\"").well_formed());
}

TEST(StoryCheck, Repeats) {
    expect_fault(kOwl + "\nFrom that day on, Mia flew the kite on every windy day.",
                 StoryFault::repeats, "paragraph");
    std::string often = kOwl;
    for (int i = 0; i < 3; ++i) often += " And Mia was a very happy girl.";
    expect_fault(often, StoryFault::repeats, "happy girl");
}

TEST(StoryCheck, HeroIsNamedAndStays) {
    expect_fault(replaced(kOwl, "a shy young girl named Mia. She had a puppy named Biscuit.",
                          "a shy young girl with a puppy."),
                 StoryFault::no_hero, "nobody");
    // Another character takes over after the second paragraph.
    const std::size_t second = kOwl.find("\"It is no use");
    const StoryVerdict swapped =
        check_story(kOwl.substr(0, second) + replaced(kOwl.substr(second), "Mia", "Lily"));
    ASSERT_EQ(swapped.problems.size(), 2u) << problems(swapped);
    EXPECT_EQ(swapped.problems[0].fault, StoryFault::hero_lost);
    EXPECT_EQ(swapped.problems[1].fault, StoryFault::stranger);
    EXPECT_NE(swapped.problems[1].what.find("Lily"), std::string::npos);
}

TEST(StoryCheck, Strangers) {
    expect_fault(replaced(kOwl, "Biscuit wagged", "Pepper wagged"), StoryFault::stranger, "Pepper");
    expect_fault(replaced(kOwl, "shouted Mia", "shouted Tom"), StoryFault::stranger, "Tom");
    // A name that is not in the storybook.
    expect_fault(replaced(kOwl, "shouted Mia. Biscuit", "shouted Gwendolyn to Gwendolyn. Biscuit"),
                 StoryFault::stranger, "Gwendolyn");
}

TEST(StoryCheck, NamesCanBeWords) {
    const StoryVerdict verdict =
        check_story(replaced(kOwl, "Mia told him everything.",
                             "Mia told him everything. \"Will you help me in June?\""));
    EXPECT_TRUE(verdict.well_formed()) << problems(verdict);
}

TEST(StoryCheck, Pronouns) {
    expect_fault(replaced(kOwl, "On Monday she tried", "On Monday he tried"), StoryFault::pronoun,
                 "'he'");
    expect_fault(replaced(kOwl, "She had a puppy", "He had a puppy"), StoryFault::pronoun, "'he'");
}

TEST(StoryCheck, Helper) {
    expect_fault(replaced(kOwl, "said the baker", "said the sailor"), StoryFault::helper, "sailor");
}

TEST(StoryCheck, Wish) {
    expect_fault(
        replaced(kOwl, "More than anything, Mia wanted to fly a kite. On Monday she tried,",
                 "Mia had a kite. On Monday she took it out,"),
        StoryFault::no_wish, "nothing");
    expect_fault(replaced(kOwl,
                          "The kite leaped up, higher than the rooftops, and danced among the "
                          "clouds.",
                          "But it rained."),
                 StoryFault::unresolved, "fly a kite");
    expect_fault(replaced(kOwl,
                          "The kite leaped up, higher than the rooftops, and danced among the "
                          "clouds.",
                          "The water held her up like a big soft bed, and she kicked and splashed "
                          "all the way across."),
                 StoryFault::mixed_up, "swim");
    expect_fault(
        replaced(kOwl, "Wait for the wind, then run toward it and let out the string bit by bit",
                 "Lie back, fill your belly with air, and let the water hold you"),
        StoryFault::mixed_up, "advice");
}

TEST(StoryCheck, WhatTheWishIsAboutComesAgain) {
    const Storybook book(4);
    int lost = 0, gift = 0, prize = 0;
    for (std::uint64_t i = 0; i < 400; ++i) {
        std::string text = book.story(i).text;
        const std::string plot = check_story(text).plot;
        const std::size_t second = text.find('\n') + 1, third = text.find('\n', second) + 1;
        const auto swap_later = [&](const char* table, const char* column) {
            const auto all = Storybook::grammar().column_texts(table, column);
            for (std::size_t k = 0; k < all.size(); ++k) {
                const std::string told = text.substr(second, third - second);
                if (told.find(all[k]) == std::string::npos) continue;
                const std::string rest = text.substr(third);
                if (rest.find(all[k]) == std::string::npos) continue;
                return !check_story(text.substr(0, third) +
                                    replaced(rest, all[k], all[(k + 5) % all.size()]))
                            .well_formed();
            }
            return true;
        };
        const struct {
            const char *plot, *table;
            int& count;
        } kinds[] = {{"lost", "toy", lost}, {"prize", "prize", prize}, {"gift", "dear", gift}};
        for (const auto& kind : kinds) {
            if (plot != kind.plot) continue;
            ++kind.count;
            EXPECT_TRUE(swap_later(kind.table, "name")) << text;
        }
    }
    EXPECT_GT(lost, 10);
    EXPECT_GT(prize, 10);
    EXPECT_GT(gift, 10);
}

// Start of the third paragraph.
std::size_t third(const std::string& story) { return story.find('\n', story.find('\n') + 1) + 1; }

// Number of stories for a share: MILLRACE_STORIES, for the figures of docs/storybook.md.
std::uint64_t stories_to_spoil() {
    const char* many = std::getenv("MILLRACE_STORIES");
    return many ? std::strtoull(many, nullptr, 10) : 160;
}

void tell(int refused, int all) {
    if (std::getenv("MILLRACE_STORIES")) std::cout << refused << " of " << all << " are refused\n";
}

TEST(StoryCheck, BeginningsWithEndingsOfOthersAreRefused) {
    const Storybook book(5);
    int refused = 0, all = 0;
    for (std::uint64_t i = 0; i < stories_to_spoil(); ++i) {
        const std::string a = book.story(i).text, b = book.story(i + 10000).text;
        const StoryVerdict of_a = check_story(a), of_b = check_story(b);
        if (of_a.plot == of_b.plot || of_a.hero == of_b.hero) continue;
        ++all;
        refused += !check_story(a.substr(0, third(a)) +
                                replaced(b.substr(third(b)) + " ", of_b.hero, of_a.hero))
                        .well_formed();
    }
    tell(refused, all);
    EXPECT_GT(all, 120);
    EXPECT_GT(refused, 0.97 * all);
}

TEST(StoryCheck, HeroesWithAnotherNameFromTheThirdParagraphOnAreRefused) {
    const Storybook book(7);
    int refused = 0, all = 0;
    for (std::uint64_t i = 0; i < stories_to_spoil(); ++i) {
        const std::string story = book.story(i).text;
        const std::string hero = check_story(story).hero;
        const std::string other = check_story(book.story(i + 10000).text).hero;
        if (hero == other) continue;
        ++all;
        refused += !check_story(story.substr(0, third(story)) +
                                replaced(story.substr(third(story)), hero, other))
                        .well_formed();
    }
    tell(refused, all);
    EXPECT_GT(all, 120);
    EXPECT_EQ(refused, all);
}

TEST(StoryCheck, CountsTheStoriesOfAText) {
    const Storybook book(1);
    const std::string good = book.story(0).text;
    const std::string text = good + "\n<|endoftext|>\n" +
                             replaced(kOwl, "Biscuit wagged", "Tom sat") +
                             "\n<|endoftext|>\n \n<|endoftext|>\n" + good.substr(0, 90);
    const auto stories = split_stories(text);
    ASSERT_EQ(stories.size(), 3u);
    EXPECT_EQ(stories[0], good);
    const StoryCensus census = check_stories(stories);
    EXPECT_EQ(census.stories, 3u);
    EXPECT_EQ(census.well_formed, 1u);
    EXPECT_EQ(census.by_grammar, 1u);
    EXPECT_NEAR(census.mean_nats, book.story(0).nats, 1e-9);
    ASSERT_EQ(census.bad.size(), 2u);
    EXPECT_EQ(census.bad[0].index, 1u);
    EXPECT_EQ(census.faults[static_cast<std::size_t>(StoryFault::stranger)], 1u);
    EXPECT_EQ(census.faults[static_cast<std::size_t>(StoryFault::unfinished)], 1u);
    EXPECT_EQ(check_stories(stories, 1).bad.size(), 1u);
}

TEST(StoryCheck, WordsAndSentences) {
    const StoryText text("\"Oh!\" said Mr. Bell's cat. \"Who is it?\"\nIt was Ann.");
    ASSERT_EQ(text.paragraphs.size(), 2u);
    EXPECT_EQ(text.paragraphs[0], " oh said mr bell cat who is it ");
    EXPECT_TRUE(text.words[0].quoted && !text.words[1].quoted);
    EXPECT_EQ(text.words[1].sentence, text.words[4].sentence);  // "Mr." ends no sentence
    EXPECT_NE(text.words[4].sentence, text.words[5].sentence);
    EXPECT_EQ(share_of(stems("carried the apples"), plain_words("She carries an apple.")), 1.0);
    EXPECT_EQ(share_of(stems("carried the apples"), plain_words("Nothing at all.")), 0.0);
}

}  // namespace
}  // namespace mr::story
