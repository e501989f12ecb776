// Which tokens may come next, so that the text stays within a grammar.
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

// A network with the tokens of a model. Any number of constraints may share it, on any threads, and
// they share the states and masks computed so far. It holds at most some 10 MB besides the network,
// and kMostMasks masks.
class Grammar {
  public:
    static constexpr std::size_t kMostMasks = 256;

    Grammar(Network network, std::shared_ptr<const Vocabulary> vocabulary);

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    const Network& network() const { return network_; }
    std::uint64_t masks_made() const;
    std::uint64_t stores_made() const;
    // Bytes held, without the vocabulary; it grows with use.
    std::size_t memory() const;
    // Drops the cached masks: for measurements.
    void forget_masks();

  private:
    friend class Constraint;
    using Mask = std::shared_ptr<const MaskWords>;
    // The states computed so far, and the most recently used masks.
    struct Known {
        explicit Known(const Network& network) : store(network), masks(kMostMasks) {}
        Store store;
        RecentMap<Store::Id, Mask> masks;
    };

    // Call it with the lock held. Replaces a full store; constraints move over one by one.
    void follow(std::shared_ptr<Known>& known, Store::Id& state);
    Mask mask_of(Store::Id state);
    void walk(const Vocabulary::Tree& tree, Store::Id state, MaskWords& mask);

    const Network network_;
    const std::shared_ptr<const Vocabulary> vocabulary_;
    mutable std::mutex mutex_;
    std::shared_ptr<Known> known_;
    std::uint64_t masks_made_ = 0, stores_made_ = 1;
    // For a walk: the state at each depth, and which states it has met.
    std::vector<Store::Id> path_;
    std::vector<std::uint32_t> met_;
    std::uint32_t walk_ = 0;
};

// The constraint on one text as it grows. Copies are independent. For one thread at a time.
class Constraint {
  public:
    explicit Constraint(std::shared_ptr<Grammar> grammar);

    // The tokens that may come next; bits past the vocabulary are 0. Valid until accept(). Empty
    // only if finished() and the vocabulary has no token that ends a generation.
    std::span<const std::uint32_t> mask();
    bool allows(std::int32_t token);
    // Appends the token, which must be in the mask.
    void accept(std::int32_t token);
    // Whether the text may end here; only then the mask has the tokens that end a generation.
    bool complete() const { return complete_; }
    // Whether the text can only end here, so that no token need be sampled.
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
