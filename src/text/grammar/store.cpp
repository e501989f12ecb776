#include "text/grammar/store.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/splitmix.h"

namespace mr::text::grammar {
namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    return splitmix(splitmix(a << 32 | b) ^ c);
}

}  // namespace

Store::Store(const Network& network) : network_(network), slots_(kSlots) {
    frames_.push_back({kNoState, 0, 0, 0});
    sets_.push_back({0, 0, false});
    rows_.emplace_back().fill(kDead);
    ++turn_;
    close({network.start(Network::kMain), 0, 0});
    start_ = intern();
}

std::size_t Store::memory() const {
    constexpr std::size_t kEntry = 40;  // per entry of a map: key, value and links
    return frames_.capacity() * sizeof(Frame) + configs_.capacity() * sizeof(Config) +
           sets_.capacity() * sizeof(Set) + rows_.capacity() * sizeof(rows_[0]) +
           slots_.capacity() * sizeof(Slot) + (frame_ids_.size() + set_ids_.size()) * kEntry;
}

std::uint32_t Store::push(StateId state, std::uint32_t count, std::uint32_t parent) {
    const std::uint64_t hash = mixed(state, count, parent);
    const auto [from, to] = frame_ids_.equal_range(hash);
    for (auto at = from; at != to; ++at) {
        const Frame& frame = frames_[at->second];
        if (frame.state == state && frame.count == count && frame.parent == parent) {
            return at->second;
        }
    }
    const auto id = static_cast<std::uint32_t>(frames_.size());
    frames_.push_back({state, count, parent, frames_[parent].height + 1});
    frame_ids_.emplace(hash, id);
    return id;
}

// True also if the table is full: such items are dropped.
bool Store::seen(const Item& item) {
    if (items_ * 2 >= kSlots) return true;
    std::size_t at = mixed(item.state, item.stack, item.count) % kSlots;
    for (; slots_[at].turn == turn_; at = (at + 1) % kSlots) {
        const Item& other = slots_[at].item;
        if (other.state == item.state && other.stack == item.stack && other.count == item.count) {
            return true;
        }
    }
    slots_[at] = {item, turn_};
    ++items_;
    return false;
}

// Follows all transitions that read no byte.
void Store::close(Item from) {
    work_.assign(1, from);
    while (!work_.empty()) {
        const Item item = work_.back();
        work_.pop_back();
        const std::uint32_t height = frames_[item.stack].height;
        if (height + network_.need(item.state) > kMostHeight || seen(item)) continue;
        const State& state = network_.state(item.state);
        switch (state.kind) {
            case State::Kind::bytes:
                if (made_.size() < kMostConfigs) made_.push_back({item.state, item.stack});
                break;
            case State::Kind::split: {
                const auto targets = network_.targets(state);
                for (std::size_t i = targets.size(); i-- > 0;) {
                    work_.push_back({targets[i], item.stack, 0});
                }
                break;
            }
            case State::Kind::call: {
                const bool last = state.next == Network::kEnd;
                if (!last && height >= kMostHeight) break;
                work_.push_back({network_.start(state.rule),
                                 last ? item.stack : push(state.next, kCalled, item.stack), 0});
                break;
            }
            case State::Kind::repeat:
                if (item.count >= state.least()) work_.push_back({state.next, item.stack, 0});
                if (item.count < state.most() && height < kMostHeight) {
                    work_.push_back(
                        {network_.start(state.rule), push(item.state, item.count, item.stack), 0});
                }
                break;
            case State::Kind::end: {
                if (item.stack == 0) {
                    made_complete_ = true;
                    break;
                }
                const Frame& frame = frames_[item.stack];
                const State& back = network_.state(frame.state);
                std::uint32_t count = 0;
                if (frame.count != kCalled) {
                    count = frame.count + 1;
                    // Without an upper limit, a count beyond `least` makes no difference.
                    if (back.most() == kUnbounded) count = std::min(count, back.least());
                }
                work_.push_back({frame.state, frame.parent, count});
                break;
            }
        }
    }
}

Store::Id Store::intern() {
    std::uint64_t hash = made_complete_ ? 1 : 2;
    for (const Config& config : made_) hash = mixed(config.state, config.stack, hash);
    const bool complete = made_complete_;
    const std::vector<Config> made = std::move(made_);
    made_.clear();
    made_complete_ = false;
    items_ = 0;
    if (made.empty() && !complete) return kDead;
    const auto [from, to] = set_ids_.equal_range(hash);
    for (auto at = from; at != to; ++at) {
        const Set& set = sets_[at->second];
        if (set.complete == complete &&
            std::equal(made.begin(), made.end(), configs_.begin() + set.first,
                       configs_.begin() + set.first + set.count)) {
            return at->second;
        }
    }
    MR_CHECK(sets_.size() < kUnknown, "a full store is left for a fresh one");
    const auto id = static_cast<Id>(sets_.size());
    sets_.push_back({static_cast<std::uint32_t>(configs_.size()),
                     static_cast<std::uint32_t>(made.size()), complete});
    configs_.insert(configs_.end(), made.begin(), made.end());
    rows_.emplace_back().fill(kUnknown);
    set_ids_.emplace(hash, id);
    return id;
}

Store::Id Store::make_next(Id state, std::uint8_t byte) {
    ++turn_;
    const Set set = sets_[state];
    for (std::uint32_t i = set.first; i < set.first + set.count; ++i) {
        const Config config = configs_[i];
        const auto edges = network_.edges(network_.state(config.state));
        const auto edge =
            std::lower_bound(edges.begin(), edges.end(), byte,
                             [](const Edge& e, std::uint8_t value) { return e.high < value; });
        if (edge == edges.end() || edge->low > byte) continue;
        close({edge->to, config.stack, 0});
    }
    const Id id = intern();
    rows_[state][byte] = id;
    return id;
}

Store::Room Store::room(Id state) const {
    const Set& set = sets_[state];
    Room room;
    std::uint32_t string = 0;  // frame of the string with the most room
    const auto at_character = [&](const Config& config) {
        if (config.stack == 0) return false;
        const Frame& frame = frames_[config.stack];
        const State& back = network_.state(frame.state);
        return frame.count != kCalled && network_.is_character(back.rule) &&
               config.state == network_.start(back.rule);
    };
    for (std::uint32_t i = set.first; i < set.first + set.count; ++i) {
        const Config& config = configs_[i];
        if (!at_character(config)) continue;
        const Frame& frame = frames_[config.stack];
        const std::uint32_t most = network_.state(frame.state).most();
        const std::uint32_t here = most == kUnbounded ? kUnbounded : most - frame.count;
        if (here > room.characters) {
            room.characters = here;
            string = config.stack;
        }
    }
    room.only = string != 0;
    for (std::uint32_t i = set.first; i < set.first + set.count; ++i) {
        const Config& config = configs_[i];
        const bool same = at_character(config) && config.stack == string;
        const bool end = string != 0 && config.stack == frames_[string].parent &&
                         config.state == network_.state(frames_[string].state).next;
        if (!same && !end) room.only = false;
    }
    return room;
}

Store::Id Store::take(const Store& other, Id state) {
    if (state == kDead) return kDead;
    const Set& set = other.sets_[state];
    ++turn_;
    std::vector<std::uint32_t> chain;
    for (std::uint32_t i = set.first; i < set.first + set.count; ++i) {
        const Config& config = other.configs_[i];
        chain.clear();
        for (std::uint32_t at = config.stack; at != 0; at = other.frames_[at].parent) {
            chain.push_back(at);
        }
        std::uint32_t stack = 0;
        for (std::size_t k = chain.size(); k-- > 0;) {
            const Frame& frame = other.frames_[chain[k]];
            stack = push(frame.state, frame.count, stack);
        }
        made_.push_back({config.state, stack});
    }
    made_complete_ = set.complete;
    return intern();
}

bool matches(const Network& network, std::string_view text) {
    auto store = std::make_unique<Store>(network);
    Store::Id state = store->start();
    for (const char c : text) {
        state = store->next(state, static_cast<std::uint8_t>(c));
        if (state == Store::kDead) return false;
        if (!store->full()) continue;
        auto fresh = std::make_unique<Store>(network);
        state = fresh->take(*store, state);
        store = std::move(fresh);
    }
    return store->complete(state);
}

}  // namespace mr::text::grammar
