// Trains a byte-level BPE tokenizer with GPT-2's way of cutting words.
//
// The most frequent pair of neighbouring tokens becomes a token, again and again; of equally
// frequent pairs the one with the lowest ids. So the result depends on the texts alone, not on
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
#include "text/tokenizer_data.h"

namespace mr::text {

struct BpeTrainOptions {
    std::int32_t vocab = 2048;
    // Ids 0, 1, ...; the first ends a text, and is put before every text that is encoded, as it
    // stands before every document in training.
    std::vector<std::string> special{"<|endoftext|>"};
    std::uint64_t min_count = 2;  // a rarer pair is not merged
};

struct BpeTrained {
    TokenizerData data;  // fewer tokens than asked for where no pair was left
    std::uint64_t bytes = 0;
    std::uint64_t words = 0;           // in the texts
    std::uint64_t distinct_words = 0;  // among them
};

class BpeTrainer {
  public:
    // Throws Error (usage) on a vocabulary below 256 + specials, or on specials that cannot be.
    BpeTrainer(BpeTrainOptions options, ThreadPool& pool);

    // Counts the words of a text. Special tokens in it end a word and count for nothing.
    void add(std::string_view text, const Progress& progress = {});
    // Throws Error (input) where no text had a word.
    BpeTrained train(const Progress& progress = {});

  private:
    struct Words {  // one per thread, so that no thread waits
        StringIndex index;
        std::deque<std::string> texts;  // what the index points into
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
