// Which tokens may come next, so that the text is one of a grammar's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "core/recent_map.h"
#include "text/grammar/network.h"
#include "text/grammar/store.h"
#include "text/grammar/vocabulary.h"

namespace mr::text::grammar {

// A network with the tokens of a model. Any number of constraints share it, on any threads; what
// one of them had to find out the others find there. It holds some 10 MB at most beside the
// network, and kMostMasks masks.
class Grammar {
  public:
    static constexpr std::size_t kMostMasks = 256;

    Grammar(Network network, std::shared_ptr<const Vocabulary> vocabulary);

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    const Network& network() const { return network_; }
    std::uint64_t masks_made() const;
    std::uint64_t stores_made() const;
    // Bytes that it holds, without the vocabulary; it grows as texts are bound by it.
    std::size_t memory() const;
    // The next ones are made anew: for measurements.
    void forget_masks();

  private:
    friend class Constraint;
    using Mask = std::shared_ptr<const MaskWords>;
    // The states that are known, and the masks of those that were asked for last.
    struct Known {
        explicit Known(const Network& network) : store(network), masks(kMostMasks) {}
        Store store;
        RecentMap<Store::Id, Mask> masks;
    };

    // With the lock. A full store is left for a fresh one, and constraints follow one by one.
    void follow(std::shared_ptr<Known>& known, Store::Id& state);
    Mask mask_of(Store::Id state);
    void walk(const Vocabulary::Tree& tree, Store::Id state, MaskWords& mask);

    const Network network_;
    const std::shared_ptr<const Vocabulary> vocabulary_;
    mutable std::mutex mutex_;
    std::shared_ptr<Known> known_;
    std::uint64_t masks_made_ = 0, stores_made_ = 1;
    // Of a walk: the state at each depth, and which states it has met.
    std::vector<Store::Id> path_;
    std::vector<std::uint32_t> met_;
    std::uint32_t walk_ = 0;
};

// One text in the making. Copies go their own ways. One thread at a time uses one.
class Constraint {
  public:
    explicit Constraint(std::shared_ptr<Grammar> grammar);

    // The tokens that may come next; bits past the vocabulary are 0. Valid until accept(). Never
    // empty, but where finished() and the vocabulary has no token that ends a generation.
    std::span<const std::uint32_t> mask();
    bool allows(std::int32_t token);
    // The token comes next. It must be one of the mask's.
    void accept(std::int32_t token);
    // The text may end here; then, and only then, the mask has the tokens that end a generation.
    bool complete() const { return complete_; }
    // And nothing can follow but an end: there is no need to draw it.
    bool finished() const { return ended_ || (complete_ && !open_); }

  private:
    void look();

    std::shared_ptr<Grammar> grammar_;
    std::shared_ptr<Grammar::Known> known_;
    Store::Id state_;
    Grammar::Mask mask_;
    bool complete_ = false, open_ = true, ended_ = false;
};

}  // namespace mr::text::grammar
