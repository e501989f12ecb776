#include "text/bpe_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <span>
#include <utility>

#include "core/error.h"
#include "text/byte_alphabet.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

namespace mr::text {
namespace {

constexpr std::size_t kChunk = 4u << 20;  // bytes of text a thread counts at a time
// Longer words (a line of dashes, base64) are counted in pieces of this size: merging within a word
// takes time linear in its length.
constexpr std::size_t kLongestWord = 1024;

// Where a text may be cut without changing its words: before a line end that follows a visible
// ASCII character, because no word contains both.
std::size_t cut_after(std::string_view text, std::size_t pos) {
    while (pos < text.size()) {
        pos = text.find('\n', pos);
        if (pos == std::string_view::npos) break;
        if (pos > 0 && text[pos - 1] > ' ' && text[pos - 1] < 0x7F) return pos;
        ++pos;
    }
    return text.size();
}

// The 256 bytes, in the order of their characters in the byte alphabet.
std::vector<unsigned char> bytes_in_order() {
    std::vector<unsigned char> bytes(256);
    for (unsigned b = 0; b < 256; ++b) bytes[b] = static_cast<unsigned char>(b);
    std::sort(bytes.begin(), bytes.end(),
              [](unsigned char a, unsigned char b) { return byte_to_char(a) < byte_to_char(b); });
    return bytes;
}

// Holds the words as rows of tokens, the counts of all neighbouring pairs, and a heap of pairs.
class Merger {
  public:
    explicit Merger(TokenizerData& data) : data_(data) {}

    void add_word(std::span<const std::int32_t> symbols, std::uint64_t count) {
        const auto word = static_cast<std::uint32_t>(words_.size());
        words_.push_back({symbols_.size(), static_cast<std::uint32_t>(symbols.size()), count});
        symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
            grow(symbols[i], symbols[i + 1], count, word);
        }
    }

    void begin() { push_grown(); }

    // Merges the most frequent pair; false if none is frequent enough.
    bool step(std::uint64_t min_count) {
        while (!heap_.empty()) {
            Candidate top = heap_.top();
            heap_.pop();
            const std::uint64_t count = pairs_[top.pair].count;
            if (count == 0) continue;
            if (count != top.count) {  // it has become rarer since
                top.count = count;
                heap_.push(top);
                continue;
            }
            if (count < min_count) return false;
            merge(top.pair);
            return true;
        }
        return false;
    }

  private:
    struct Word {
        std::size_t begin;
        std::uint32_t size;
        std::uint64_t count;
    };
    struct Pair {
        std::int32_t left, right;
        std::uint64_t count = 0;           // occurrences in all texts
        bool grown = false;                // to be pushed to the heap
        std::vector<std::uint32_t> words;  // words that contain it, or did once
    };
    struct Candidate {
        std::uint64_t count;
        std::int32_t left, right;
        std::uint32_t pair;
        bool operator<(const Candidate& other) const {  // the largest leaves the heap first
            if (count != other.count) return count < other.count;
            return std::pair(left, right) > std::pair(other.left, other.right);
        }
    };

    void grow(std::int32_t left, std::int32_t right, std::uint64_t count, std::uint32_t word) {
        std::uint32_t i = table_.find(left, right).rank;
        if (i == PairTable::kNoRank) {
            i = static_cast<std::uint32_t>(pairs_.size());
            table_.set(left, right, {i, -1});
            pairs_.push_back({left, right, 0, false, {}});
        }
        Pair& pair = pairs_[i];
        pair.count += count;
        if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
        if (!pair.grown) grown_.push_back(i);
        pair.grown = true;
    }

    void shrink(std::int32_t left, std::int32_t right, std::uint64_t count) {
        pairs_[table_.find(left, right).rank].count -= count;
    }

    void push_grown() {
        for (const std::uint32_t i : grown_) {
            Pair& pair = pairs_[i];
            pair.grown = false;
            if (pair.count > 0) heap_.push({pair.count, pair.left, pair.right, i});
        }
        grown_.clear();
    }

    // Every occurrence of a token's text was merged in the same way, because no earlier merge
    // crossed its ends. So the text of the new token is not in the vocabulary yet.
    std::int32_t add_token(Merge m) {
        data_.tokens.push_back(data_.tokens[static_cast<std::size_t>(m.left)] +
                               data_.tokens[static_cast<std::size_t>(m.right)]);
        data_.types.push_back(TokenType::normal);
        data_.merges.push_back(m);
        return static_cast<std::int32_t>(data_.tokens.size() - 1);
    }

    void merge(std::uint32_t pair) {
        const std::int32_t left = pairs_[pair].left, right = pairs_[pair].right;
        const std::int32_t merged = add_token({left, right});
        const std::vector<std::uint32_t> words = std::move(pairs_[pair].words);
        pairs_[pair].words.clear();
        for (const std::uint32_t word : words) merge_in(word, left, right, merged);
        push_grown();
    }

    void merge_in(std::uint32_t index, std::int32_t left, std::int32_t right, std::int32_t merged) {
        Word& word = words_[index];
        std::int32_t* s = symbols_.data() + word.begin;
        const std::size_t n = word.size;
        hit_.assign(n, 0);
        bool any = false;
        for (std::size_t i = 0; i + 1 < n; ++i) {
            if (s[i] != left || s[i + 1] != right || hit_[i]) continue;
            hit_[i] = 1;      // first of a pair to merge
            hit_[i + 1] = 2;  // second
            any = true;
        }
        if (!any) return;
        // Uncount every pair that touches a merged token; below, count those of the new token.
        for (std::size_t i = 0; i + 1 < n; ++i) {
            if (hit_[i] || hit_[i + 1]) shrink(s[i], s[i + 1], word.count);
        }
        std::size_t size = 0;
        for (std::size_t i = 0; i < n; ++i) {
            if (hit_[i] == 2) continue;
            const bool is_new = hit_[i] == 1;
            s[size] = is_new ? merged : s[i];
            hit_[size++] = is_new;
        }
        word.size = static_cast<std::uint32_t>(size);
        for (std::size_t i = 0; i + 1 < size; ++i) {
            if (hit_[i] || hit_[i + 1]) grow(s[i], s[i + 1], word.count, index);
        }
    }

    TokenizerData& data_;
    std::vector<Word> words_;
    std::vector<std::int32_t> symbols_;  // of all words
    PairTable table_;                    // pair -> its index in pairs_, stored as the rank
    std::vector<Pair> pairs_;
    std::vector<std::uint32_t> grown_;
    std::priority_queue<Candidate> heap_;
    std::vector<std::uint8_t> hit_;
};

void check(const BpeTrainOptions& options) {
    for (std::size_t i = 0; i < options.special.size(); ++i) {
        const std::string& text = options.special[i];
        const auto refuse = [&](const char* problem) {
            throw Error::usage({.field = "--special",
                                .value = text,
                                .problem = problem,
                                .remedy = "give a mark like <|endoftext|>"});
        };
        if (text.empty()) refuse("is empty");
        if (text.find('\n') != std::string::npos) refuse("has a line end in it");
        if (replace_invalid(text) != text) refuse("is not UTF-8");
        // The text could clash with a token for a byte: a single character, or one of the printable
        // characters that stand for a space and the like.
        if (text.size() == char_at(text, 0).size) refuse("is a single character");
        if (!is_ascii(text) && bytes_of_token(text)) {
            refuse("could be mistaken for a token of the vocabulary");
        }
        if (std::count(options.special.begin(), options.special.end(), text) > 1) {
            refuse("is given twice");
        }
    }
    const auto least = static_cast<std::int64_t>(256 + options.special.size());
    if (options.vocab < least || options.vocab > (1 << 24)) {
        throw Error::usage(
            {.field = "--vocab",
             .value = fmt::format("{}", options.vocab),
             .problem = fmt::format("is not from {} (256 bytes, special tokens: {}) to {}", least,
                                    options.special.size(), 1 << 24)});
    }
}

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainOptions options, ThreadPool& pool)
    : options_(std::move(options)), pool_(pool), words_(static_cast<std::size_t>(pool.size())) {
    check(options_);
    for (std::size_t i = 0; i < options_.special.size(); ++i) {
        special_.insert(
            {.id = static_cast<std::int32_t>(i), .text = options_.special[i], .special = true});
    }
    special_.finish();
}

void BpeTrainer::Words::add(std::string_view word, std::uint64_t count) {
    std::int32_t i = index.find(word);
    if (i < 0) {
        i = static_cast<std::int32_t>(counts.size());
        index.insert(texts.emplace_back(word), i);
        counts.push_back(0);
    }
    counts[static_cast<std::size_t>(i)] += count;
}

void BpeTrainer::count(std::string_view text, Words& words) const {
    AddedTokens::Search search(special_, text, true);
    for (std::size_t pos = 0; pos < text.size();) {
        const AddedTokens::Match match = search.next();
        const std::string_view section = text.substr(0, match.begin);
        while (pos < section.size()) {
            const std::size_t end = word_end(PreTokenizer::gpt2, section, pos);
            for (; pos < end; pos += std::min(end - pos, kLongestWord)) {
                words.add(section.substr(pos, std::min(end - pos, kLongestWord)), 1);
            }
        }
        pos = match.end;
    }
}

void BpeTrainer::add(std::string_view text, const Progress& progress) {
    std::vector<std::string_view> chunks;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t end = cut_after(text, std::min(text.size(), pos + kChunk));
        chunks.push_back(text.substr(pos, end - pos));
        pos = end;
    }
    // In rounds, so that progress is reported between them on the caller's thread.
    const std::size_t round = words_.size() * 4;
    for (std::size_t first = 0; first < chunks.size(); first += round) {
        const std::size_t count_now = std::min(round, chunks.size() - first);
        pool_.parallel_for(static_cast<std::int64_t>(count_now), 1,
                           [&](std::int64_t begin, std::int64_t end, int thread) {
                               for (std::int64_t i = begin; i < end; ++i) {
                                   count(chunks[first + static_cast<std::size_t>(i)],
                                         words_[static_cast<std::size_t>(thread)]);
                               }
                           });
        const std::string_view last = chunks[first + count_now - 1];
        if (progress) {
            progress("counting words",
                     static_cast<std::uint64_t>(last.data() + last.size() - text.data()),
                     text.size());
        }
    }
    bytes_ += text.size();
}

BpeTrained BpeTrainer::train(const Progress& progress) {
    Words& all = words_.front();
    for (std::size_t t = 1; t < words_.size(); ++t) {
        for (std::size_t i = 0; i < words_[t].counts.size(); ++i) {
            all.add(words_[t].texts[i], words_[t].counts[i]);
        }
        words_[t] = {};
    }
    BpeTrained out;
    out.bytes = bytes_;
    out.distinct_words = all.counts.size();
    for (const std::uint64_t count : all.counts) out.words += count;
    if (out.words == 0) {
        throw Error::input({.field = "--data",
                            .problem = "contains no text to train on",
                            .remedy = "give files with text"});
    }

    TokenizerData& data = out.data;
    data.model = TokenizerModel::byte_level_bpe;
    data.pre = pre_tokenizer_name(PreTokenizer::gpt2);
    for (const std::string& text : options_.special) {
        data.added.push_back(
            {.id = static_cast<std::int32_t>(data.tokens.size()), .text = text, .special = true});
        data.tokens.push_back(text);
        data.types.push_back(TokenType::control);
    }
    if (!options_.special.empty()) {
        data.bos = data.eos = 0;
        data.prefix = {0};
    }
    std::int32_t byte_ids[256];
    for (const unsigned char b : bytes_in_order()) {
        byte_ids[b] = static_cast<std::int32_t>(data.tokens.size());
        append_utf8(data.tokens.emplace_back(), byte_to_char(b));
        data.types.push_back(TokenType::normal);
    }

    Merger merger(data);
    std::vector<std::int32_t> symbols;
    for (std::size_t i = 0; i < all.counts.size(); ++i) {
        symbols.clear();
        for (const char c : all.texts[i]) {
            symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
        }
        merger.add_word(symbols, all.counts[i]);
    }
    merger.begin();
    const auto wanted = static_cast<std::size_t>(options_.vocab);
    while (data.tokens.size() < wanted && merger.step(options_.min_count)) {
        if (progress && data.merges.size() % 64 == 0) {
            progress("merging pairs", data.tokens.size(), wanted);
        }
    }
    return out;
}

}  // namespace mr::text
