// Stories as words, sentences and paragraphs: what story_check.cpp looks at.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr::story {

struct StoryWord {
    std::string text;          // as it is spelled, without a possessive 's
    std::string lower;         // in small letters
    std::size_t sentence = 0;  // counted through the story
    std::size_t paragraph = 0;
    bool starts = false;  // the first word of its sentence, or of a quotation
    bool quoted = false;  // somebody says it
};

struct StoryText {
    explicit StoryText(std::string_view text);

    std::vector<std::string> paragraphs;  // in small letters, words separated by single blanks
    std::vector<StoryWord> words;
    std::vector<std::string> sentences;  // as they are
    bool quotes_close = true;            // in every paragraph

    // Paragraphs [first, last) as one text, with a blank at both ends.
    std::string part(std::size_t first, std::size_t last) const;
};

// In small letters, words alone, separated by single blanks, with a blank at both ends: so that
// " to see " is found as words.
std::string plain_words(std::string_view text);

// `word` behind a blank: where a word of plain_words() begins.
std::string word_start(std::string_view word);

// The words that say what a text is about: five first letters of each longer word that is not one
// of the usual ones. Each once.
std::vector<std::string> stems(std::string_view text);

// What share of `wanted` a text (of plain_words) has, as the beginning of a word.
double share_of(const std::vector<std::string>& wanted, std::string_view plain);

}  // namespace mr::story
