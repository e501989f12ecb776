// The grammars that requests bind their texts to. Compiled ones are kept for the next request.
#pragma once

#include <cstdint>
#include <functional>
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
    static constexpr std::size_t kMost =
        16;  // that are kept; some 10 MB each at most, and a schema

    using MakeFilter = std::function<std::unique_ptr<ops::TokenFilter>()>;

    // The tokenizer must outlive it. `logits`: tokens that the model has; `ends`: those that end a
    // generation beside the tokenizer's.
    Grammars(const text::Tokenizer& tokenizer, std::int32_t logits,
             std::vector<std::int32_t> ends = {});

    // `key` is all that `make` depends on. `banned` tokens do not come where others may. Throws
    // Error: what `make` throws, or where the tokens cannot write every text.
    MakeFilter filter(const std::string& key, const std::function<text::grammar::Network()>& make,
                      std::vector<std::int32_t> banned = {});
    std::size_t kept() const;

  private:
    using GrammarPtr = std::shared_ptr<text::grammar::Grammar>;
    GrammarPtr find(const std::string& key);
    std::shared_ptr<const text::grammar::Vocabulary> vocabulary();

    const text::Tokenizer& tokenizer_;
    const std::int32_t logits_;
    const std::vector<std::int32_t> ends_;
    mutable std::mutex mutex_;
    std::mutex making_;  // of the vocabulary, which takes long
    std::shared_ptr<const text::grammar::Vocabulary> vocabulary_;
    RecentMap<std::string, GrammarPtr> grammars_{kMost};
};

}  // namespace mr::serve
