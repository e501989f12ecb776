#include "lab/story/story_check.h"

#include <algorithm>
#include <set>

#include "lab/story/story_words.h"
#include "lab/story/storybook.h"

namespace mr::story {
namespace {

using Names = std::set<std::string, std::less<>>;

bool has(std::string_view plain, std::string_view words) {
    return plain.find(word_start(words).append(" ")) != std::string_view::npos;
}
bool has_any(std::string_view plain, std::initializer_list<const char*> all) {
    return std::any_of(all.begin(), all.end(), [&](const char* w) { return has(plain, w); });
}

// The topics of stories, from the storybook's tables: how a wish is worded, and what must happen in
// the end in each case.
struct Case {
    std::string key;                  // plain words, a blank at both ends
    std::vector<std::string> ending;  // stems
    std::vector<std::string> advice;  // stems; may be none
};
struct Plot {
    const char* name;
    bool (*told)(std::string_view wish);  // whether the wish's paragraph names one
    bool key_in_wish;                     // else the key is in the advice
    std::vector<Case> cases;
};

std::vector<Plot> make_plots() {
    const Grammar& g = Storybook::grammar();
    const auto cases = [&](const char* table, const char* key,
                           std::initializer_list<const char*> ending, const char* advice) {
        std::vector<Case> all;
        for (const std::string& text : g.column_texts(table, key)) {
            all.push_back({plain_words(text), {}, {}});
        }
        for (const char* column : ending) {
            const auto texts = g.column_texts(table, column);
            for (std::size_t i = 0; i < all.size(); ++i) {
                for (std::string& stem : stems(texts[i])) all[i].ending.push_back(std::move(stem));
            }
        }
        if (advice) {
            const auto texts = g.column_texts(table, advice);
            for (std::size_t i = 0; i < all.size(); ++i) all[i].advice = stems(texts[i]);
        }
        return all;
    };
    using View = std::string_view;
    std::vector<Plot> plots;
    plots.push_back({"quarrel",
                     [](View p) {
                         return has_any(p, {"quarrel", "both", "argued", "fight"});
                     },
                     true, cases("cause", "about", {"peace"}, nullptr)});
    plots.push_back({"gift",
                     [](View p) {
                         return has_any(p, {"birthday", "present", "gift"});
                     },
                     false, cases("idea", "do", {"give"}, nullptr)});
    plots.push_back({"broken",
                     [](View p) {
                         return has_any(p, {"broke", "broken", "smashed"});
                     },
                     true, cases("ware", "name", {"mend"}, nullptr)});
    plots.push_back({"prize",
                     [](View p) {
                         return has_any(p, {"window", "coins", "shop"});
                     },
                     false, cases("needy", "who", {"joy", "gain"}, nullptr)});
    plots.push_back({"rescue",
                     [](View p) {
                         return has_any(p, {"mother", "home"}) &&
                                has_any(p, {"heard", "found", "stepped", "saw", "met"});
                     },
                     true, cases("baby", "name", {"win"}, "tip")});
    plots.push_back({"lost",
                     [](View p) {
                         return has_any(p, {"gone", "find", "back", "lost", "missing"});
                     },
                     true, cases("toy", "name", {"how"}, nullptr)});
    plots.push_back({"grow",
                     [](View p) {
                         return has_any(p, {"grow", "planted"});
                     },
                     true, cases("plant", "what", {"grown"}, "tip")});
    plots.push_back({"fear",
                     [](View p) {
                         return has_any(p, {"afraid", "brave", "scared", "fear"});
                     },
                     true, cases("fear", "of", {"truth"}, "tip")});
    plots.push_back({"wonder",
                     [](View p) {
                         return has_any(p, {"see", "seen"});
                     },
                     true, cases("sight", "what", {"comes"}, "tip")});
    plots.push_back({"friend",
                     [](View p) {
                         return has_any(p, {"friend", "friends", "lonely"});
                     },
                     false, cases("share", "tip", {"with"}, nullptr)});
    plots.push_back(
        {"learn",
         [](View p) {
             return has_any(p, {"wanted", "wish", "wished", "could", "want", "dreamed"});
         },
         true, cases("skill", "do", {"win"}, "tip")});
    return plots;
}

// Names in the storybook, and those that are also words.
struct Lexicon {
    Names people, she, he;
    std::vector<Plot> plots = make_plots();

    Lexicon() {
        const Grammar& g = Storybook::grammar();
        const auto add = [&](const char* table, Names* also) {
            for (const std::string& name : g.column_texts(table, "name")) {
                people.insert(name);
                if (also) also->insert(name);
            }
        };
        add("girl", &she), add("she_beast", &she), add("boy", &he), add("he_beast", &he);
        add("petname", nullptr);
    }
};
const Lexicon& lexicon() {
    static const Lexicon lexicon;
    return lexicon;
}

enum class Gender { unknown, she, he };

class Check {
  public:
    explicit Check(std::string_view raw) : raw_(raw), text_(raw) {}

    StoryVerdict run() {
        const Grammar::Reading reading = Storybook::grammar().read(raw_);
        verdict_.by_grammar = reading.derivations > 0;
        if (verdict_.by_grammar) verdict_.nats = reading.nats;
        whole();
        repeats();
        if (!find_hero()) {
            problem(StoryFault::no_hero, "nobody is named in the beginning");
            return std::move(verdict_);
        }
        hero_stays();
        strangers();
        helpers();
        wish();
        pronouns();
        return std::move(verdict_);
    }

  private:
    void problem(StoryFault fault, std::string what) {
        for (const StoryProblem& p : verdict_.problems) {
            if (p.fault == fault) return;  // one of each kind is enough
        }
        verdict_.problems.push_back({fault, std::move(what)});
    }

    std::size_t paragraphs() const { return text_.paragraphs.size(); }
    // The last paragraphs, in which the plot must be resolved.
    std::string ending(std::size_t count) const {
        return text_.part(paragraphs() - std::min(paragraphs(), count), paragraphs());
    }

    void whole() {
        const std::size_t last = raw_.find_last_not_of(" \t\r\n");
        const char end = last == std::string_view::npos ? ' ' : raw_[last];
        if (paragraphs() < 4) {
            problem(StoryFault::unfinished,
                    "it has " + std::to_string(paragraphs()) + " of at least 4 paragraphs");
        } else if (end != '.' && end != '!' && end != '?' && end != '"') {
            problem(StoryFault::unfinished, "it ends in the middle of a sentence");
        } else if (!text_.quotes_close) {
            problem(StoryFault::unfinished, "somebody starts to speak and never ends");
        }
    }

    void repeats() {
        std::set<std::string> seen;
        for (const std::string& p : text_.paragraphs) {
            if (!seen.insert(p).second) {
                problem(StoryFault::repeats, "a paragraph comes twice");
            }
        }
        std::vector<std::string> sorted = text_.sentences;
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t i = 2; i < sorted.size(); ++i) {
            if (sorted[i].size() > 12 && sorted[i] == sorted[i - 2]) {
                problem(StoryFault::repeats, "a sentence comes three times: " + sorted[i]);
            }
        }
    }

    // The first name in the text is the hero; a name after "named" or "friend" is introduced.
    bool find_hero() {
        for (std::size_t i = 1; i < text_.words.size(); ++i) {
            const StoryWord &before = text_.words[i - 1], &word = text_.words[i];
            const bool capital = word.text[0] >= 'A' && word.text[0] <= 'Z';
            const bool named = before.lower == "named" || before.lower == "called";
            if (!capital || !(named || before.lower == "friend")) continue;
            introduced_.insert(word.text);
            if (word.paragraph == 0) introduced_at_first_ = introduced_.size();
            if (!verdict_.hero.empty() || !named || word.paragraph > 0) continue;
            verdict_.hero = word.text;
            const std::string kind = i >= 2 ? text_.words[i - 2].lower : "";
            if (kind == "girl" || lexicon().she.contains(word.text)) gender_ = Gender::she;
            if (kind == "boy" || lexicon().he.contains(word.text)) gender_ = Gender::he;
            if (kind == "girl") gender_ = Gender::she;  // whatever her name
        }
        return !verdict_.hero.empty();
    }

    void hero_stays() {
        std::set<std::size_t> where;
        for (const StoryWord& word : text_.words) {
            if (word.text == verdict_.hero) where.insert(word.paragraph);
        }
        const bool late = !where.empty() && *where.rbegin() + 3 >= paragraphs();
        if (where.size() < 3 || !late) {
            problem(StoryFault::hero_lost, verdict_.hero + " is named in " +
                                               std::to_string(where.size()) + " of " +
                                               std::to_string(paragraphs()) + " paragraphs" +
                                               (late ? "" : " and in none of the last three"));
        }
    }

    void strangers() {
        static const Names kKin = {"I",   "Mum",   "Mom",    "Mommy", "Mummy", "Mother", "Father",
                                   "Dad", "Daddy", "Granny", "Nana",  "Santa", "God"};
        static const Names kTitles = {"Mr",    "Mrs",    "Miss", "Ms",      "Aunt",
                                      "Uncle", "Cousin", "King", "Captain", "Queen"};
        const Grammar& g = Storybook::grammar();
        Names once;
        for (std::size_t i = 0; i < text_.words.size(); ++i) {
            const StoryWord& word = text_.words[i];
            if (!(word.text[0] >= 'A' && word.text[0] <= 'Z') || word.text.size() < 2) continue;
            if (introduced_.contains(word.text) || kKin.contains(word.text)) continue;
            if (i > 0 && kTitles.contains(text_.words[i - 1].text)) continue;
            const bool known = lexicon().people.contains(word.text);
            if (known) {
                // "Will you?", "In June": names that are also words.
                const std::string next =
                    i + 1 < text_.words.size() ? plain_words(text_.words[i + 1].lower) : "";
                if (has_any(next, {"you", "i", "he", "she", "it", "they", "we", "the"})) continue;
                if (i > 0 && text_.words[i - 1].lower == "in") continue;
            } else if (word.starts || g.knows(word.text) || once.insert(word.text).second) {
                continue;  // not a name, or seen only once
            }
            problem(StoryFault::stranger, word.text + " was never introduced");
        }
    }

    void helpers() {
        for (std::size_t i = 2; i < text_.words.size(); ++i) {
            const StoryWord& said = text_.words[i - 2];
            if (text_.words[i - 1].lower != "the" || said.quoted) continue;
            if (said.lower != "said" && said.lower != "asked") continue;
            const std::string& who = text_.words[i].lower;
            if (said.sentence != text_.words[i].sentence || who == "other") continue;
            const auto earlier = std::find_if(
                text_.words.begin(), text_.words.begin() + static_cast<std::ptrdiff_t>(i) - 1,
                [&](const StoryWord& w) { return w.lower == who; });
            if (earlier == text_.words.begin() + static_cast<std::ptrdiff_t>(i) - 1) {
                problem(StoryFault::helper, "the " + who + " speaks and never came");
            }
        }
    }

    // Finds the plot of the wish, and its case.
    void wish() {
        const std::string told = text_.part(1, 2);
        const std::string later = text_.part(2, paragraphs());
        const Plot* by_word = nullptr;
        // Words in the wish itself decide before words that come later.
        for (const bool in_wish : {true, false}) {
            for (const Plot& plot : lexicon().plots) {
                if (case_ || plot.key_in_wish != in_wish || !plot.told(told)) continue;
                for (const Case& c : plot.cases) {
                    const std::string& where = in_wish ? told : later;
                    if (where.find(c.key) == std::string::npos) continue;
                    if (!case_ || c.key.size() > case_->key.size()) plot_ = &plot, case_ = &c;
                }
                // "learn" has the most common words: any other plot takes precedence.
                if (!by_word || by_word == &lexicon().plots.back()) by_word = &plot;
            }
        }
        if (!plot_) plot_ = by_word;
        if (!plot_) {
            problem(StoryFault::no_wish, "the second paragraph wishes for nothing");
            return;
        }
        verdict_.plot = plot_->name;
        objects(told);
        if (case_) {
            resolved();
        } else {
            resolved_somehow(told);
        }
    }

    // A known wish must end as its own case does, not as another one.
    void resolved() {
        const std::string end = ending(4);
        const double own = share_of(case_->ending, end);
        if (own < kResolved) {
            const Case* other = another_that_ends(end);
            if (other) {
                problem(StoryFault::mixed_up,
                        "the wish is about" + case_->key + "and ends as that about" + other->key);
            } else {
                problem(StoryFault::unresolved,
                        "what should come of the wish about" + case_->key + "does not happen");
            }
        }
        if (case_->advice.size() < 3) return;
        const std::string middle = text_.part(2, paragraphs());
        if (share_of(case_->advice, middle) >= kResolved) return;
        for (const Case& c : plot_->cases) {
            if (&c != case_ && c.advice.size() > 3 && share_of(c.advice, middle) >= 0.9) {
                problem(StoryFault::mixed_up, "the wish is about" + case_->key +
                                                  "and the advice is for that about" + c.key);
            }
        }
    }

    const Case* another_that_ends(const std::string& end) const {
        const Case* other = nullptr;
        double most = 0.75;  // share of the ending's stems: less may be chance
        for (const Plot& plot : lexicon().plots) {
            for (const Case& c : plot.cases) {
                const double share = share_of(c.ending, end);
                if (c.ending.size() > 3 && share >= most) most = share, other = &c;
            }
        }
        return other;
    }

    // A wish that the storybook does not know: some of its words must come again, and the end be
    // happy.
    void resolved_somehow(const std::string& told) {
        const std::string end = ending(2);
        const bool well =
            has_any(end, {"wish",    "wished",  "true",      "day on",   "then on",  "after that",
                          "never",   "always",  "no longer", "at last",  "friends",  "friend",
                          "now",     "learned", "home",      "forever",  "together", "happy",
                          "happily", "glad",    "proud",     "whenever", "every"});
        std::vector<std::string> about = stems(told);
        const std::string hero = plain_words(verdict_.hero);
        std::erase_if(about, [&](const std::string& s) {
            return hero.find(word_start(s)) == 0 || s == "wish" || s == "wishe" || s == "wante";
        });
        const std::string rest = text_.part(2, paragraphs());
        const bool again = std::any_of(about.begin(), about.end(), [&](const std::string& s) {
            return rest.find(word_start(s)) != std::string::npos;
        });
        if (!well || !again) {
            problem(StoryFault::unresolved, "nothing in the end tells what came of the wish");
        }
    }

    // The object of the wish, or the person it is for, must be there in the end.
    void objects(const std::string& told) {
        const std::string plot = plot_->name, end = ending(3);
        const auto need = [&](const std::string& plain, const std::string& where) {
            if (plain.size() > 2 && where.find(plain) == std::string::npos) {
                problem(StoryFault::unresolved, "nothing is heard of" + plain + "in the end");
            }
        };
        if (plot == "lost" && case_) need(case_->key, end);
        if (plot == "prize") {
            for (const std::string& name : Storybook::grammar().column_texts("prize", "name")) {
                const std::string plain = plain_words(name);
                if (told.find(plain) != std::string::npos) need(plain, end);
            }
        }
        if (plot == "gift" || plot == "broken") {  // the recipient, or the owner
            const char* table = plot == "gift" ? "dear" : "owner";
            for (const std::string& name : Storybook::grammar().column_texts(table, "name")) {
                if (told.find(plain_words(name)) != std::string::npos) need(plain_words(name), end);
            }
        }
        if (plot == "friend" && !case_ && introduced_.size() == introduced_at_first_) {
            problem(StoryFault::unresolved, "nobody new comes to be a friend");
        }
        if (plot == "friend" || plot == "quarrel") {
            for (const std::string& name : introduced_) {
                const bool pal = name != verdict_.hero &&
                                 (lexicon().she.contains(name) || lexicon().he.contains(name));
                if (pal && text_.part(0, 1).find(plain_words(name)) == std::string::npos) {
                    need(plain_words(name), end);
                }
            }
        }
    }

    // Until another character comes, "he" or "she" is the hero.
    void pronouns() {
        if (gender_ == Gender::unknown) return;
        const std::string plot = plot_ ? plot_->name : "";
        const bool others = plot == "friend" || plot == "broken" || plot == "quarrel" ||
                            plot == "prize" || plot.empty();
        const bool odd = case_ && has_any(case_->key, {"doll", "soldier", "jack", "cat"});
        for (std::size_t i = 0; i < text_.words.size(); ++i) {
            const StoryWord& word = text_.words[i];
            if (word.quoted) continue;
            if (!others && has_any(plain_words(word.lower), {"came", "close", "along", "saw"})) {
                // A new character: from here on the referent is unknown.
                if (word.paragraph >= 2) break;
            }
            const bool possessive = word.lower == "his" || (word.lower == "her" && word.starts);
            const bool subject = word.lower == "he" || word.lower == "she";
            if (!possessive && !subject) continue;
            const Gender gender =
                word.lower == "he" || word.lower == "his" ? Gender::he : Gender::she;
            // The opening, then the paragraphs of the wish and of trying.
            const bool clear =
                word.paragraph == 0 || (!others && !odd && subject && word.paragraph <= 2);
            if (clear && gender != gender_) {
                problem(StoryFault::pronoun,
                        verdict_.hero +
                            (gender_ == Gender::she ? " is 'she', then '" : " is 'he', then '") +
                            word.lower + "'");
            }
        }
    }

    static constexpr double kResolved = 0.5;

    std::string_view raw_;
    StoryText text_;
    StoryVerdict verdict_;
    Names introduced_;
    std::size_t introduced_at_first_ = 0;  // in the first paragraph
    Gender gender_ = Gender::unknown;
    const Plot* plot_ = nullptr;
    const Case* case_ = nullptr;
};

}  // namespace

const char* story_fault_name(StoryFault fault) {
    constexpr const char* kNames[] = {"unfinished", "repeats", "no hero", "hero lost",  "stranger",
                                      "pronoun",    "helper",  "no wish", "unresolved", "mixed up"};
    static_assert(std::size(kNames) == static_cast<std::size_t>(StoryFault::kCount));
    return kNames[static_cast<std::size_t>(fault)];
}

StoryVerdict check_story(std::string_view text) { return Check(text).run(); }

std::vector<std::string_view> split_stories(std::string_view text) {
    std::vector<std::string_view> stories;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(text::kEndOfText, at), text.size());
        std::string_view story = text.substr(at, end - at);
        const std::size_t first = story.find_first_not_of(" \t\r\n");
        if (first != std::string_view::npos) {
            stories.push_back(story.substr(first, story.find_last_not_of(" \t\r\n") - first + 1));
        }
        at = end + text::kEndOfText.size();
    }
    return stories;
}

StoryCensus check_stories(const std::vector<std::string_view>& stories, std::size_t most_bad,
                          const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    constexpr std::uint64_t kProgressEvery = 500;  // stories
    StoryCensus census;
    for (const std::string_view story : stories) {
        StoryVerdict verdict = check_story(story);
        census.well_formed += verdict.well_formed();
        census.by_grammar += verdict.by_grammar;
        if (verdict.by_grammar) census.mean_nats += verdict.nats;
        for (const StoryProblem& p : verdict.problems) {
            ++census.faults[static_cast<std::size_t>(p.fault)];
        }
        if (!verdict.well_formed() && census.bad.size() < most_bad) {
            census.bad.push_back({census.stories, std::move(verdict.problems)});
        }
        ++census.stories;
        if (progress && census.stories % kProgressEvery == 0) {
            progress(census.stories, stories.size());
        }
    }
    if (census.by_grammar > 0) census.mean_nats /= static_cast<double>(census.by_grammar);
    return census;
}

}  // namespace mr::story
