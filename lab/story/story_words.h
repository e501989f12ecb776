// Stories as words, sentences and paragraphs, for story_check.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr::story {

struct StoryWord {
    std::string text;          // as spelled, without a possessive 's
    std::string lower;         // in lower case
    std::size_t sentence = 0;  // counted through the story
    std::size_t paragraph = 0;
    bool starts = false;  // the first word of its sentence, or of a quotation
    bool quoted = false;  // inside a quotation
};

struct StoryText {
    explicit StoryText(std::string_view text);

    std::vector<std::string> paragraphs;  // in lower case, words separated by single blanks
    std::vector<StoryWord> words;
    std::vector<std::string> sentences;  // as written
    bool quotes_close = true;            // in every paragraph

    // Paragraphs [first, last) as one text, with a blank at both ends.
    std::string part(std::size_t first, std::size_t last) const;
};

// Only words, in lower case, separated by single blanks, with a blank at both ends: so that " to
// see " matches whole words.
std::string plain_words(std::string_view text);

// `word` after a blank: matches the beginning of a word in plain_words().
std::string word_start(std::string_view word);

// The topic words of a text: the first five letters of each longer word that is not a common one.
// Each once.
std::vector<std::string> stems(std::string_view text);

// The share of `wanted` that begin a word of `plain` (from plain_words()).
double share_of(const std::vector<std::string>& wanted, std::string_view plain);

}  // namespace mr::story
