#include "text/grammar/constraint.h"

#include <algorithm>

#include "core/error.h"

namespace mr::text::grammar {
namespace {

// Bounds the cost of a walk: kState for each state met, and 1 for each of its configurations. If a
// grammar has more within one token's reach, the walk ends: tokens not reached by then are not
// allowed, but single bytes always are. States met are counted, not states made, so that a mask
// does not depend on what was computed before.
constexpr std::size_t kMostCost = 16384, kState = 4;

void set_bit(MaskWords& mask, std::int32_t token) {
    mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
}

}  // namespace

Grammar::Grammar(Network network, std::shared_ptr<const Vocabulary> vocabulary)
    : network_(std::move(network)),
      vocabulary_(std::move(vocabulary)),
      known_(std::make_shared<Known>(network_)),
      path_(Vocabulary::kMostBytes + 1),
      met_(std::size_t{1} << 16) {
    MR_CHECK(vocabulary_, "a grammar has a vocabulary");
}

std::uint64_t Grammar::masks_made() const {
    const std::lock_guard lock(mutex_);
    return masks_made_;
}

std::uint64_t Grammar::stores_made() const {
    const std::lock_guard lock(mutex_);
    return stores_made_;
}

std::size_t Grammar::memory() const {
    const std::lock_guard lock(mutex_);
    return network_.memory() + known_->store.memory() +
           known_->masks.size() * vocabulary_->words() * sizeof(MaskWords::value_type) +
           path_.capacity() * sizeof(path_[0]) + met_.capacity() * sizeof(met_[0]);
}

void Grammar::forget_masks() {
    const std::lock_guard lock(mutex_);
    known_->masks = RecentMap<Store::Id, Mask>(kMostMasks);
}

void Grammar::follow(std::shared_ptr<Known>& known, Store::Id& state) {
    if (known_->store.full()) {
        known_ = std::make_shared<Known>(network_);
        ++stores_made_;
    }
    if (known == known_) return;
    state = known_->store.take(known->store, state);
    known = known_;
}

Grammar::Mask Grammar::mask_of(Store::Id state) {
    if (Mask* found = known_->masks.find(state)) return *found;
    ++masks_made_;
    const Store& store = known_->store;
    MaskWords mask(vocabulary_->words(), 0);
    const Store::Room room = store.room(state);
    // Plain tokens need no walk if all of them fit into a string, or nothing else may follow.
    const bool roomy = room.characters >= Vocabulary::kMostPlain;
    if (room.characters > 0 && (roomy || room.only)) {
        mask = vocabulary_->plain(std::min<std::size_t>(room.characters, Vocabulary::kMostPlain));
        walk(vocabulary_->other(), state, mask);
    } else {
        walk(vocabulary_->all(), state, mask);
    }
    if (store.complete(state)) {
        for (const std::int32_t token : vocabulary_->ends()) set_bit(mask, token);
    }
    return known_->masks.put(state, std::make_shared<const MaskWords>(std::move(mask)));
}

void Grammar::walk(const Vocabulary::Tree& tree, Store::Id state, MaskWords& mask) {
    Store& store = known_->store;
    const Vocabulary::Node* nodes = tree.nodes.data();
    const std::size_t count = tree.nodes.size() - 1;
    const auto take = [&](std::size_t i) {
        for (std::uint32_t t = nodes[i].first; t < nodes[i + 1].first; ++t) {
            set_bit(mask, tree.tokens[t]);
        }
    };
    for (std::size_t i = 0; i < count; i = nodes[i].skip) {
        if (store.next(state, nodes[i].byte) != Store::kDead) take(i);
    }
    ++walk_;
    std::size_t cost = 0;
    path_[0] = state;
    for (std::size_t i = 0; i < count;) {
        const Vocabulary::Node& node = nodes[i];
        const Store::Id from = path_[node.depth - 1u];
        const Store::Id next = store.next(from, node.byte);
        if (next == Store::kDead) {
            i = node.skip;
            continue;
        }
        if (next != from && met_[next] != walk_) {
            cost += kState + store.width(next);
            if (cost > kMostCost) return;
            met_[next] = walk_;
        }
        path_[node.depth] = next;
        take(i);
        ++i;
    }
}

Constraint::Constraint(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {
    MR_CHECK(grammar_, "a constraint has a grammar");
    const std::lock_guard lock(grammar_->mutex_);
    known_ = grammar_->known_;
    state_ = known_->store.start();
    look();
}

void Constraint::look() {
    complete_ = known_->store.complete(state_);
    open_ = known_->store.open(state_);
}

std::span<const std::uint32_t> Constraint::mask() {
    MR_CHECK(!ended_, "a text that has ended has no next token");
    if (!mask_) {
        const std::lock_guard lock(grammar_->mutex_);
        grammar_->follow(known_, state_);
        mask_ = grammar_->mask_of(state_);
    }
    return *mask_;
}

bool Constraint::allows(std::int32_t token) {
    if (token < 0 || token >= grammar_->vocabulary().size()) return false;
    return (mask()[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
}

void Constraint::accept(std::int32_t token) {
    MR_CHECK(!ended_, "a text that has ended takes no token");
    const Vocabulary& vocabulary = grammar_->vocabulary();
    mask_.reset();
    if (vocabulary.is_end(token)) {
        MR_CHECK(complete_, "a text ends where it is complete");
        ended_ = true;
        return;
    }
    const std::string_view bytes = vocabulary.bytes(token);
    const std::lock_guard lock(grammar_->mutex_);
    grammar_->follow(known_, state_);
    const Store::Id next = bytes.empty() ? Store::kDead : known_->store.next(state_, bytes);
    MR_CHECK(next != Store::kDead, "a token is one of the mask's");
    state_ = next;
    look();
}

}  // namespace mr::text::grammar
