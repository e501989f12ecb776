#include "lab/story/story_words.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace mr::story {
namespace {

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
char small(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// "Mr." and "Mrs." do not end a sentence.
bool is_title(const std::string& word) { return word == "Mr" || word == "Mrs"; }

}  // namespace

std::string word_start(std::string_view word) {
    std::string text(1, ' ');
    return text.append(word);
}

std::string plain_words(std::string_view text) {
    std::string plain = " ";
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (is_letter(text[i])) {
            plain.push_back(small(text[i]));
        } else if (text[i] == '\'' && i + 1 < text.size() && text[i + 1] == 's' &&
                   (i + 2 == text.size() || !is_letter(text[i + 2]))) {
            ++i;  // a possessive 's is dropped
        } else if (plain.back() != ' ') {
            plain.push_back(' ');
        }
    }
    if (plain.back() != ' ') plain.push_back(' ');
    return plain;
}

std::vector<std::string> stems(std::string_view text) {
    static const std::set<std::string, std::less<>> kUsual = {
        "about", "after", "again", "with",  "that",  "then",    "there", "they",   "them",
        "their", "this",  "from",  "have",  "into",  "just",    "like",  "little", "more",
        "much",  "only",  "other", "over",  "right", "some",    "until", "very",   "were",
        "what",  "when",  "where", "which", "your",  "because", "every", "could",  "would",
        "had",   "has",   "was",   "the",   "and",   "but",     "for",   "not",    "she",
        "her",   "his",   "him",   "its",   "all",   "out",     "one",   "you"};
    std::vector<std::string> found;
    const std::string plain = plain_words(text);
    for (std::size_t at = 1; at < plain.size();) {
        const std::size_t end = plain.find(' ', at);
        const std::string word = plain.substr(at, end - at);
        at = end + 1;
        if (word.size() < 3 || kUsual.contains(word)) continue;
        const std::string stem = word.substr(0, 5);
        if (std::find(found.begin(), found.end(), stem) == found.end()) found.push_back(stem);
    }
    return found;
}

double share_of(const std::vector<std::string>& wanted, std::string_view plain) {
    if (wanted.empty()) return 1;
    std::size_t found = 0;
    for (const std::string& stem : wanted) {
        // For longer words four matching letters are enough: "carried" matches "carry".
        found += plain.find(word_start(stem.substr(0, 4))) != std::string_view::npos;
    }
    return static_cast<double>(found) / static_cast<double>(wanted.size());
}

StoryText::StoryText(std::string_view text) {
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::size_t paragraph = paragraphs.size();
        paragraphs.push_back(plain_words(line));
        bool quoted = false, starts = true;
        sentences.emplace_back();
        for (std::size_t i = 0; i < line.size(); ++i) {
            const char c = line[i];
            if (is_letter(c)) {
                std::size_t stop = i;
                while (stop < line.size() && is_letter(line[stop])) ++stop;
                StoryWord word{std::string(line.substr(i, stop - i)),
                               {},
                               sentences.size() - 1,
                               paragraph,
                               starts,
                               quoted};
                std::transform(word.text.begin(), word.text.end(), std::back_inserter(word.lower),
                               small);
                sentences.back().append(line.substr(i, stop - i));
                const bool possessive = word.lower == "s" && i > 0 && line[i - 1] == '\'';
                if (!possessive) words.push_back(std::move(word));
                starts = false;
                i = stop - 1;
                continue;
            }
            sentences.back().push_back(c);
            if (c == '"') {
                quoted = !quoted;
                starts = starts || quoted;
            }
            const bool title = c == '.' && !words.empty() && is_title(words.back().text);
            if ((c == '.' || c == '!' || c == '?') && !title) {
                starts = true;
                // A quotation that continues in its sentence ("Oh!" whispered Zoe) is part of it.
                if (i + 1 < line.size() && line[i + 1] == '"') continue;
                sentences.emplace_back();
            }
        }
        quotes_close = quotes_close && !quoted;
    }
    for (std::string& s : sentences) {
        s.erase(0, std::min(s.find_first_not_of(" \""), s.size()));
    }
}

std::string StoryText::part(std::size_t first, std::size_t last) const {
    std::string all = " ";
    for (std::size_t p = first; p < std::min(last, paragraphs.size()); ++p) {
        all.append(paragraphs[p], 1);
    }
    return all;
}

}  // namespace mr::story
