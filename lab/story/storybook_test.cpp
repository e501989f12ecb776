#include "lab/story/storybook.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace mr::story {
namespace {

// Enumerates every derivation of a grammar, like an odometer.
class Odometer final : public Chooser {
  public:
    size_t choose(std::span<const uint32_t> weights, uint32_t) override {
        if (at_ == digits_.size()) digits_.push_back({0, {}});
        Digit& digit = digits_[at_++];
        digit.options.clear();
        for (size_t i = 0; i < weights.size(); ++i)
            if (weights[i] > 0) digit.options.push_back(i);
        return digit.options[digit.value];
    }

    bool next() {
        digits_.resize(at_);
        at_ = 0;
        while (!digits_.empty() && digits_.back().value + 1 == digits_.back().options.size())
            digits_.pop_back();
        if (digits_.empty()) return false;
        ++digits_.back().value;
        return true;
    }

  private:
    struct Digit {
        size_t value;
        std::vector<size_t> options;
    };
    std::vector<Digit> digits_;
    size_t at_ = 0;
};

struct Enumeration {
    size_t derivations = 0;
    std::map<std::string, double> texts;  // text -> probability
    double entropy = 0;                   // of the text, by its definition
};

Enumeration enumerate(const Grammar& grammar) {
    Enumeration all;
    Odometer odometer;
    do {
        std::string text;
        const double nats = grammar.derive(odometer, text);
        all.texts[text] += std::exp(-nats);
        ++all.derivations;
    } while (odometer.next());
    for (const auto& [text, p] : all.texts) all.entropy -= p * std::log(p);
    return all;
}

// Uses every feature of the engine: weights, inline choices, empty alternatives, records with
// choices and bindings, exclusions from tables with unequal weights, and words that are prefixes.
constexpr const char* kSmall = R"(
@rule story
{who} {tale} [The end.|]
@rule who
2* Here is {hero=child}, {a home=home}.
1* {hero=child} lived [long ago|far away] in {a home=home}.
@rule tale
3* {^hero.they} met {pal=child!hero}. {home.helper}
1* -
2* {hero} met {pal=child!hero} and {third=child!hero!pal}. {third.they} [sang|danced].
@table child: name | they
2* Ann | she
Anna | she
3* Bo | he
2* Cy | he
Dee | she
@table home: kind | helper
hut | [An owl|A {beast=beast}] came.
2* old hut | {beast=beast!nobody} came, {beast2=beast!beast} [too|as well].
5* boat | -
@table beast: kind
Fox; 4* Fox cub; Crow
@rule unused
{nobody=beast}
)";

TEST(Grammar, EntropyIsThatOfEveryTextCounted) {
    const Grammar grammar(kSmall, "story");
    const Enumeration all = enumerate(grammar);
    double total = 0;
    for (const auto& [text, p] : all.texts) total += p;
    EXPECT_GT(all.derivations, 500u);
    EXPECT_EQ(all.texts.size(), all.derivations);  // unambiguous by enumeration
    EXPECT_TRUE(grammar.ambiguities().empty());    // and by proof
    // A sum of about a thousand terms of order 1, each with a few roundings.
    EXPECT_NEAR(total, 1.0, 1e-12);
    EXPECT_NEAR(grammar.entropy_nats(), all.entropy, 1e-11);
}

TEST(Grammar, EntropyByHand) {
    // Independent of the grammar's own arithmetic: the texts and their probabilities are counted
    // here.
    //   "A sat."  1/4 * 2/3          "A ran." 1/4 * 1/3
    //   "B met C." 3/4 * 1/3 ("B") * 1/2, and so on for the ordered pairs of three, without
    //   repeats, weights 1, 1, 2: P(x) P(y | not x)
    const Grammar grammar(
        "@rule s\n1* A {verb}.\n3* {x=t} met {y=t!x}.\n@rule verb\n2* sat\n1* ran\n"
        "@table t: name\nB; C; 2* D\n",
        "s");
    const double weights[] = {1, 1, 2};
    double want = 0;
    const auto text = [&](double p) { want -= p * std::log(p); };
    text(1.0 / 4 * 2 / 3);
    text(1.0 / 4 * 1 / 3);
    for (int x = 0; x < 3; ++x)
        for (int y = 0; y < 3; ++y)
            if (x != y) text(3.0 / 4 * weights[x] / 4 * weights[y] / (4 - weights[x]));
    EXPECT_NEAR(grammar.entropy_nats(), want, 1e-14);
    EXPECT_NEAR(grammar.read("D met B.").nats, -std::log(3.0 / 4 * 2 / 4 * 1 / 2), 1e-14);
}

TEST(Grammar, ReadsBackEveryText) {
    const Grammar grammar(kSmall, "story");
    for (const auto& [text, p] : enumerate(grammar).texts) {
        const Grammar::Reading reading = grammar.read(text);
        ASSERT_EQ(reading.derivations, 1u) << text;
        ASSERT_NEAR(reading.nats, -std::log(p), 1e-12) << text;
    }
    EXPECT_EQ(grammar.read("Here is Ann, a castle.").derivations, 0u);
    EXPECT_EQ(grammar.read("").derivations, 0u);
}

TEST(Grammar, SeesAmbiguity) {
    const char* alike[] = {
        "@rule s\nA cat sat.\nA [cat|dog] sat.\n",
        "@rule s\n[big|] [big|] cat\n",
        "@rule s\n{x=t} {x.b}\n@table t: a | b\nred | one\nred | one\n",
        "@rule s\n{x=t} car\n{x=t} fast car\n@table t: a\nred\nred fast\n",
        "@rule s\n{x=t.b}\n@table t: a | b\nred | one\nblue | one\n",
    };
    for (const char* source : alike) {
        const Grammar grammar(source, "s");
        const Enumeration all = enumerate(grammar);
        EXPECT_LT(all.texts.size(), all.derivations) << source;
        EXPECT_FALSE(grammar.ambiguities().empty()) << source;
        EXPECT_GT(grammar.entropy_nats(), all.entropy) << source;
    }
}

TEST(Grammar, RefusesBadSources) {
    for (const char* source : {
             "@rule t\nx\n",                                // no start
             "@rule s\n{nothing}\n",                        // unknown slot
             "@rule s\n{x=none}\n",                         // unknown table
             "@rule s\n{x=t.c}\n@table t: a | b\n1 | 2\n",  // unknown column
             "@rule s\n{x=t}\n@table t: a | b\n1\n",        // a column short
             "@rule s\n{x=t}s\n@table t: a\n1\n",           // slot touches a letter
             "@rule s\n{t}\n@rule t\n{s}\n",                // recursion
             "@rule s\n[a|b\n",                             // open bracket
             "@rule s\n0* a\n",                             // impossible weight
             "@rule s\na\n@rule s\nb\n",                    // twice
             "@rule s\n{^x=t}\n@table t: a\n[b|c]\n",       // no capital form
         })
        EXPECT_THROW(Grammar(source, "s"), std::invalid_argument) << source;
}

TEST(Grammar, SpacesAndForms) {
    const Grammar grammar(
        "@rule s\n{A x=t} [|] ran, {a x}. {^x.b} [|]!//{x.b}\n@table t: a | b\nowl | she\n", "s");
    Odometer first;
    std::string text;
    grammar.derive(first, text);
    EXPECT_EQ(text, "An owl ran, an owl. She!\nshe");
}

TEST(Storybook, ProvenUnambiguous) {
    const auto ambiguities = Storybook::grammar().ambiguities();
    for (const std::string& line : ambiguities) ADD_FAILURE() << line;
}

TEST(Storybook, ReadsBackItsStories) {
    const Storybook book(11);
    for (uint64_t i = 0; i < 500; ++i) {
        const Storybook::Story story = book.story(i);
        const Grammar::Reading reading = Storybook::grammar().read(story.text);
        ASSERT_EQ(reading.derivations, 1u) << story.text;
        // Sums of about a hundred logarithms, in a different order.
        ASSERT_NEAR(reading.nats, story.nats, 1e-10) << story.text;
    }
}

TEST(Storybook, MeanSurprisalAgreesWithExactEntropy) {
    constexpr int kStories = 20000;
    const Storybook book(7);
    double sum = 0, squares = 0;
    for (int i = 0; i < kStories; ++i) {
        const double nats = book.story(i).nats;
        sum += nats;
        squares += nats * nats;
    }
    const double mean = sum / kStories;
    const double error = std::sqrt((squares / kStories - mean * mean) / kStories);
    EXPECT_NEAR(mean, Storybook::entropy_nats(), 4 * error);
    EXPECT_LT(error, 0.1);  // otherwise the line above says little
}

TEST(Storybook, DependsOnSeedAndIndexAlone) {
    const Storybook a(1), again(1), b(2);
    for (uint64_t i : {uint64_t(0), uint64_t(1), uint64_t(999), ~uint64_t(0)}) {
        EXPECT_EQ(a.story(i).text, again.story(i).text);
        EXPECT_NE(a.story(i).text, b.story(i).text);
    }
    std::ostringstream all, few, tail;
    const StorybookStats stats = write_storybook(all, 50, 1);
    write_storybook(few, 20, 1);
    write_storybook(tail, 30, 1, {}, 20);
    EXPECT_EQ(all.str(), few.str() + tail.str());
    EXPECT_EQ(few.str().substr(0, a.story(0).text.size() + 15),
              a.story(0).text + "\n<|endoftext|>\n");
    EXPECT_EQ(stats.stories, 50u);
    EXPECT_EQ(stats.bytes, all.str().size());
    EXPECT_EQ(stats.entropy_nats, Storybook::entropy_nats());
}

TEST(Storybook, DrawsNeverChange) {
    // The generator is part of the corpus: with another one, "seed 1" would be another book.
    Dice dice(1, 2);
    const std::vector<uint32_t> weights(1000, 1);
    std::vector<size_t> draws;
    for (int i = 0; i < 4; ++i) draws.push_back(dice.choose(weights, 1000));
    EXPECT_EQ(draws, (std::vector<size_t>{842, 27, 56, 972}));
}

TEST(Storybook, ReportsProgress) {
    std::ostringstream out;
    uint64_t last = 0;
    write_storybook(out, 5000, 3, [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, last);
        EXPECT_EQ(total, 5000u);
        last = done;
    });
    EXPECT_EQ(last, 5000u);
}

TEST(Storybook, StopsWhenTheStreamFails) {
    std::ostringstream out;
    out.setstate(std::ios::badbit);
    EXPECT_LT(write_storybook(out, 100000, 3).stories, 100000u);
}

TEST(Storybook, ReadsLikeText) {
    const Storybook book(5);
    for (uint64_t i = 0; i < 20000; ++i) {
        const std::string text = book.story(i).text;
        size_t words = 1, quotes = 0;
        for (size_t k = 0; k < text.size(); ++k) {
            const char c = text[k], next = k + 1 < text.size() ? text[k + 1] : '\n';
            ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << text;
            ASSERT_EQ(std::string("{}[]|*_=<>#@/").find(c), std::string::npos) << c << "\n" << text;
            words += c == ' ' || c == '\n';
            const bool blank = c == ' ' || c == '\n', next_blank = next == ' ' || next == '\n';
            if (k + 1 < text.size()) {
                ASSERT_FALSE(blank && next_blank) << text;
            }
            ASSERT_FALSE(c == ' ' && std::string(",.!?").find(next) != std::string::npos) << text;
            if (c == '"') {
                // Quotes open before a word and close after a mark, inside one paragraph.
                const bool opens = quotes++ % 2 == 0;
                if (opens) {
                    ASSERT_FALSE(next_blank) << text;
                }
                if (!opens) {
                    ASSERT_NE(text[k - 1], ' ') << text;
                }
            }
            if (c == '\n') {
                ASSERT_EQ(quotes % 2, 0u) << text;
            }
            // A sentence starts with a capital letter.
            if (c == '\n' || (c == '.' && next == ' ')) {
                const size_t at = k + (c == '\n' ? 1 : 2);
                const char start = text[at] == '"' ? text[at + 1] : text[at];
                ASSERT_TRUE(start >= 'A' && start <= 'Z') << text.substr(at) << "\n\n" << text;
            }
            if (c == '.') {
                ASSERT_FALSE(next == '.' || next == ',') << text;
            }
        }
        ASSERT_TRUE(text.back() == '.' || text.back() == '!' || text.back() == '"') << text;
        ASSERT_GE(words, 80u) << text;
        ASSERT_LE(words, 210u) << text;
    }
    EXPECT_GE(Storybook::grammar().words().least, 80u);
    EXPECT_LE(Storybook::grammar().words().most, 260u);
}

// What the hero wears or carries at the beginning comes again at the end.
TEST(Storybook, RemembersFromTheBeginningToTheEnd) {
    const auto says = Storybook::grammar().column_texts("keepsake", "says");
    const auto again = Storybook::grammar().column_texts("keepsake", "again");
    const Storybook book(8);
    int came_again = 0;
    for (uint64_t i = 0; i < 2000; ++i) {
        const std::string text = book.story(i).text;
        const size_t opening = text.find('\n');
        for (size_t k = 0; k < says.size(); ++k) {
            if (text.find(again[k] + ".") == std::string::npos) continue;
            ++came_again;
            EXPECT_LT(text.find(says[k] + "."), opening) << text;
        }
    }
    EXPECT_GT(came_again, 50);
}

TEST(Storybook, IsRich) {
    const Grammar::Size size = Storybook::grammar().size();
    EXPECT_GT(size.records, 1200u);
    EXPECT_GT(size.alternatives, 2000u);
    EXPECT_GT(size.words, 3000u);
    EXPECT_GT(Storybook::entropy_nats(), 55.0);
    // Draws from e^55 or more texts do not collide within a few thousand.
    const Storybook book(21);
    std::unordered_map<std::string, uint64_t> seen;
    for (uint64_t i = 0; i < 20000; ++i) ASSERT_TRUE(seen.emplace(book.story(i).text, i).second);
}

}  // namespace
}  // namespace mr::story
