// Trains a byte-level BPE tokenizer with GPT-2's pre-tokenizer.
//
// The most frequent pair of neighbouring tokens becomes a token, again and again; of equally
// frequent pairs, the one with the lowest ids. So the result depends only on the texts, not on
// their order or on the number of threads.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "core/thread_pool.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/documents.h"
#include "text/tokenizer_data.h"

namespace mr::text {

struct BpeTrainOptions {
    std::int32_t vocab = 2048;
    // Ids 0, 1, ... The first marks the end of a text. encode() also puts it before every text,
    // because in training it stands before every document.
    std::vector<std::string> special{std::string(kEndOfText)};
    std::uint64_t min_count = 2;  // rarer pairs are not merged
};

struct BpeTrained {
    TokenizerData data;  // may have fewer tokens than asked for
    std::uint64_t bytes = 0;
    std::uint64_t words = 0;           // in all texts
    std::uint64_t distinct_words = 0;  // of these
};

class BpeTrainer {
  public:
    // Throws Error (usage) for a vocabulary below 256 + specials, or for invalid special tokens.
    BpeTrainer(BpeTrainOptions options, ThreadPool& pool);

    // Counts the words of a text. Special tokens in it end a word and are not counted.
    void add(std::string_view text, const Progress& progress = {});
    // Throws Error (input) if no text had a word.
    BpeTrained train(const Progress& progress = {});

  private:
    struct Words {  // one per thread, so that threads share nothing
        StringIndex index;
        std::deque<std::string> texts;  // owns the keys of the index
        std::vector<std::uint64_t> counts;
        void add(std::string_view word, std::uint64_t count);
    };
    void count(std::string_view text, Words& words) const;

    BpeTrainOptions options_;
    ThreadPool& pool_;
    AddedTokens special_;
    std::vector<Words> words_;  // [threads]
    std::uint64_t bytes_ = 0;
};

}  // namespace mr::text
