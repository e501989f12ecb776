#include "serve/grammars.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "serve/failure.h"

namespace mr::serve {
namespace {

class Filter final : public ops::TokenFilter {
  public:
    Filter(std::shared_ptr<text::grammar::Grammar> grammar, std::vector<std::int32_t> banned)
        : constraint_(std::move(grammar)), banned_(std::move(banned)) {}

    std::span<const std::uint32_t> mask() override {
        const std::span<const std::uint32_t> all = constraint_.mask();
        if (banned_.empty()) return all;
        left_.assign(all.begin(), all.end());
        for (const std::int32_t id : banned_) {
            left_[static_cast<std::size_t>(id) / 32] &= ~(1U << id % 32);
        }
        // If only banned tokens could continue the text, they are allowed.
        const bool any = std::any_of(left_.begin(), left_.end(), [](auto word) { return word; });
        return any ? std::span<const std::uint32_t>(left_) : all;
    }
    void accept(std::int32_t token) override { constraint_.accept(token); }
    bool finished() const override { return constraint_.finished(); }

  private:
    text::grammar::Constraint constraint_;
    const std::vector<std::int32_t> banned_;
    text::grammar::MaskWords left_;
};

}  // namespace

Grammars::Grammars(const text::Tokenizer& tokenizer, std::int32_t logits,
                   std::vector<std::int32_t> ends, std::size_t most_bytes)
    : tokenizer_(tokenizer), logits_(logits), ends_(std::move(ends)), most_bytes_(most_bytes) {}

std::shared_ptr<const text::grammar::Vocabulary> Grammars::vocabulary() {
    const std::lock_guard lock(making_);
    if (!vocabulary_) {
        vocabulary_ = std::make_shared<const text::grammar::Vocabulary>(tokenizer_, logits_, ends_);
    }
    return vocabulary_;
}

Grammars::GrammarPtr Grammars::find(const std::string& key) {
    const auto known = held_.find(key);
    GrammarPtr grammar = known == held_.end() ? nullptr : known->second.lock();
    if (grammar) kept_.put(grammar.get(), grammar);
    return grammar;
}

std::size_t Grammars::held() {
    std::size_t bytes = 0;
    for (auto at = held_.begin(); at != held_.end();) {
        const GrammarPtr grammar = at->second.lock();
        if (grammar) bytes += grammar->memory() + at->first.size();
        at = grammar ? std::next(at) : held_.erase(at);
    }
    return bytes;
}

// Evicts grammars that no request holds, oldest first.
void Grammars::make_room(std::size_t bytes) {
    if (bytes > most_bytes_) {
        throw Failure::of(400, "invalid_request_error",
                          fmt::format("the schema or tools of this request take {} bytes as a "
                                      "grammar, and the server has {} for all; send a smaller one",
                                      bytes, most_bytes_),
                          "grammar_too_large");
    }
    while (held() + bytes > most_bytes_ && kept_.size() > 0) kept_.drop_oldest();
    if (held() + bytes <= most_bytes_) return;
    Failure full = Failure::of(
        503, "server_error",
        "schemas and tools of other requests use all the memory for grammars; try again later",
        "grammars_full");
    full.retry_after_ms = 1000;
    throw full;
}

std::size_t Grammars::kept() const {
    const std::lock_guard lock(mutex_);
    return kept_.size();
}

Grammars::MakeFilter Grammars::filter_of(GrammarPtr grammar, std::vector<std::int32_t> banned) {
    return [grammar = std::move(grammar), banned = std::move(banned)] {
        return std::make_unique<Filter>(grammar, banned);
    };
}

std::optional<Grammars::MakeFilter> Grammars::known(const std::string& key,
                                                    const std::vector<std::int32_t>& banned) {
    const std::lock_guard lock(mutex_);
    GrammarPtr grammar = find(key);
    if (!grammar) return std::nullopt;
    return filter_of(std::move(grammar), banned);
}

Grammars::MakeFilter Grammars::filter(const std::string& key,
                                      const std::function<text::grammar::Network()>& make,
                                      std::vector<std::int32_t> banned) {
    GrammarPtr grammar;
    {
        const std::lock_guard lock(mutex_);
        grammar = find(key);
    }
    if (!grammar) {
        // Without the lock: two threads may make the same grammar, and one is kept.
        auto made = std::make_shared<text::grammar::Grammar>(make(), vocabulary());
        const std::lock_guard lock(mutex_);
        grammar = find(key);
        if (!grammar) {
            make_room(made->memory() + key.size());
            grammar = std::move(made);
            held_[key] = grammar;
            kept_.put(grammar.get(), grammar);
        }
    }
    return filter_of(std::move(grammar), std::move(banned));
}

}  // namespace mr::serve
