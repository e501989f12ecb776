// The grammars that requests bind their texts to. Compiled ones are kept for the next request, and
// all requests with the same have one.
//
// A request holds its grammar while it waits and runs, so the cache does not bound them: when one
// more is made, all that are held may have kMostBytes, and text_bytes() for each text that may run.
// Those that bind texts grow behind that, each to some 10 MB and its masks beside its network
// (text/grammar/constraint.h); text_bytes() is their room. A text that has not moved on to a new
// store since its grammar began one holds the old one, which is not counted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/recent_map.h"
#include "ops/sample/adjust.h"
#include "text/grammar/constraint.h"

namespace mr::serve {

class Grammars {
  public:
    static constexpr std::size_t kMost = 16;  // that are kept without a request
    static constexpr std::size_t kMostBytes = std::size_t{512} << 20;  // with their keys
    // What a grammar that binds texts grows by, about, with so many tokens.
    static constexpr std::size_t text_bytes(std::int64_t vocab) {
        const auto mask = static_cast<std::size_t>((vocab + 31) / 32 * 4);
        return (std::size_t{10} << 20) + text::grammar::Grammar::kMostMasks * mask;
    }

    using MakeFilter = std::function<std::unique_ptr<ops::TokenFilter>()>;

    // The tokenizer must outlive it. `logits`: tokens that the model has; `ends`: those that end a
    // generation beside the tokenizer's.
    Grammars(const text::Tokenizer& tokenizer, std::int32_t logits,
             std::vector<std::int32_t> ends = {}, std::size_t most_bytes = kMostBytes);

    // `key` is all that `make` depends on. `banned` tokens do not come where others may. Throws
    // Error: what `make` throws, or where the tokens cannot write every text; Failure: 503 where
    // the grammars of other requests leave no room, 400 where all of the room were too little.
    MakeFilter filter(const std::string& key, const std::function<text::grammar::Network()>& make,
                      std::vector<std::int32_t> banned = {});
    std::size_t kept() const;

  private:
    using GrammarPtr = std::shared_ptr<text::grammar::Grammar>;
    // With the mutex held.
    GrammarPtr find(const std::string& key);
    std::size_t held();  // bytes
    void make_room(std::size_t bytes);

    std::shared_ptr<const text::grammar::Vocabulary> vocabulary();

    const text::Tokenizer& tokenizer_;
    const std::int32_t logits_;
    const std::vector<std::int32_t> ends_;
    const std::size_t most_bytes_;
    mutable std::mutex mutex_;
    std::mutex making_;  // of the vocabulary, which takes long
    std::shared_ptr<const text::grammar::Vocabulary> vocabulary_;
    std::map<std::string, std::weak_ptr<text::grammar::Grammar>> held_;  // by their keys
    RecentMap<const text::grammar::Grammar*, GrammarPtr> kept_{kMost};
};

}  // namespace mr::serve
