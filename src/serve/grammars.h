// The grammars that constrain texts of requests. Compiled ones are cached, and requests with the
// same grammar share it.
//
// A request holds its grammar while it waits and runs, so the cache size does not bound them: when
// one more is made, all held grammars together may take kMostBytes, plus text_bytes() for each text
// that may run. Grammars in use grow beyond that, each by up to about 10 MB and its masks besides
// its network (text/grammar/constraint.h); text_bytes() is the room for that. A text that still
// uses an old store after its grammar has begun a new one holds the old one, which is not counted:
// at most one for each text that runs, of about 10 MB.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/recent_map.h"
#include "ops/sample/adjust.h"
#include "text/grammar/constraint.h"

namespace mr::serve {

class Grammars {
  public:
    static constexpr std::size_t kMost = 16;                           // cached without a request
    static constexpr std::size_t kMostBytes = std::size_t{512} << 20;  // including their keys
    // Approximate growth of a grammar in use, for this many tokens.
    static constexpr std::size_t text_bytes(std::int64_t vocab) {
        const auto mask = static_cast<std::size_t>((vocab + 31) / 32 * 4);
        return (std::size_t{10} << 20) + text::grammar::Grammar::kMostMasks * mask;
    }

    using MakeFilter = std::function<std::unique_ptr<ops::TokenFilter>()>;

    // The tokenizer must outlive the object. `logits`: tokens of the model; `ends`: end tokens
    // besides the tokenizer's.
    Grammars(const text::Tokenizer& tokenizer, std::int32_t logits,
             std::vector<std::int32_t> ends = {}, std::size_t most_bytes = kMostBytes);

    // The filter of a grammar that is there already.
    std::optional<MakeFilter> known(const std::string& key,
                                    const std::vector<std::int32_t>& banned = {});
    // `key` must identify everything `make` depends on. `banned` tokens are used only if no others
    // may come. Throws Error: what `make` throws, or if the tokens cannot write every text;
    // Failure: 503 if the grammars of other requests leave no room, 400 if it would not fit alone.
    MakeFilter filter(const std::string& key, const std::function<text::grammar::Network()>& make,
                      std::vector<std::int32_t> banned = {});
    std::size_t kept() const;

  private:
    using GrammarPtr = std::shared_ptr<text::grammar::Grammar>;
    static MakeFilter filter_of(GrammarPtr grammar, std::vector<std::int32_t> banned);
    // These need the mutex.
    GrammarPtr find(const std::string& key);
    std::size_t held();  // bytes
    void make_room(std::size_t bytes);

    std::shared_ptr<const text::grammar::Vocabulary> vocabulary();

    const text::Tokenizer& tokenizer_;
    const std::int32_t logits_;
    const std::vector<std::int32_t> ends_;
    const std::size_t most_bytes_;
    mutable std::mutex mutex_;
    std::mutex making_;  // for making the vocabulary, which takes long
    std::shared_ptr<const text::grammar::Vocabulary> vocabulary_;
    std::map<std::string, std::weak_ptr<text::grammar::Grammar>> held_;  // by their keys
    RecentMap<const text::grammar::Grammar*, GrammarPtr> kept_{kMost};
};

}  // namespace mr::serve
